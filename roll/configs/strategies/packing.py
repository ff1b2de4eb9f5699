"""What of a Hugging Face model stands in the way of packing its rows, as far as config.json tells. What it does not
tell, the model is asked when it is loaded (roll/models/sequences/packed_attention.py)."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.checks.prefix_sharing import window_problems
from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import ATTENTION_CAP, attention_cap, text_part, unpacked
from roll.configs.strategies.sequence_parallel import head_problems, rope_problems

PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks packing and prefix sharing of strategies that run Hugging Face models."""
    worker = choice.worker
    if not worker.packs_rows and worker.use_prefix_sharing != "on":
        return
    text = text_part(model)
    layers = text.get("layer_types") or ()
    others = sorted({str(kind) for kind in layers} - PACKABLE_LAYERS)
    reason = unpacked(text) and f"which has {unpacked(text)}"
    if others:
        reason = f"whose config.json has layers of type {', '.join(others)}, which see past the end of a row"
    if (cap := attention_cap(text)) is not None:
        reason = f"which has a soft cap on attention ({ATTENTION_CAP}: {cap}) that the kernels for packs leave out"
    args = choice.worker.model_args
    keys = {
        f"{choice.role.name}.use_sequence_packing": ("true", "false") if worker.use_sequence_packing else None,
        f"{choice.role.name}.use_prefix_sharing": ("on", "off") if worker.use_prefix_sharing == "on" else None,
        f"{choice.role.name}.model_args.ulysses_size": (args.ulysses_size, 1) if args.ulysses_size > 1 else None,
    }
    for key, values in keys.items() if reason else ():
        if values is not None:
            yield Problem(
                f"{key}: {values[0]} with {args.model_name_or_path}, {reason}. Set it to "
                f"{values[1]}; use_dynamic_batching_in_train and _in_infer keep padding small.",
                (key, f"{choice.role.name}.model_args.model_name_or_path"),
            )
    yield from window_problems(choice, text)
    yield from head_problems(choice, text)
    yield from rope_problems(choice, text)
