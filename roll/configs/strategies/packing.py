"""Reasons why rows of a Hugging Face model cannot be packed, as far as config.json tells. Anything else is checked when
the model is loaded (roll/models/sequences/check.py)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import OWN_ATTENTION, STATES
from roll.configs.strategies.model_numbers import ATTENTION_CAP, attention_cap, text_part, type_of, unpacked
from roll.configs.strategies.sequence_parallel import head_problems, rope_problems

PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
STATES_IN_PARTS = "layers that carry a state from token to token, through whole rows"


def unpackable_layers(kind: str, layers: Iterable[object]) -> list[str]:
    """Types of layers that see past the end of a row in a pack, of a model of this type."""
    return [] if kind in STATES else sorted({str(layer) for layer in layers} - PACKABLE_LAYERS)


def why_no_packs(text: Mapping[str, Any]) -> str:
    """Say what of a model's config.json (its part about text) keeps its rows from being packed; empty: nothing."""
    if (cap := attention_cap(text)) is not None:
        return f"which has a soft cap on attention ({ATTENTION_CAP}: {cap}) that the kernels for packs leave out"
    if others := unpackable_layers(type_of(text), text.get("layer_types") or ()):
        return f"whose config.json has layers of type {', '.join(others)}, which see past the end of a row"
    return f"which has {unpacked(text)}" if unpacked(text) else ""


def why_no_parts(text: Mapping[str, Any]) -> str:
    """Say the same of rows that are computed in parts: as trees, or by several ranks."""
    if why := why_no_packs(text):
        return why
    if type_of(text) in STATES:
        return f"which has {STATES_IN_PARTS}"
    return "which has attention of its own" if type_of(text) in OWN_ATTENTION else ""


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks packing and prefix sharing of strategies that run Hugging Face models."""
    worker = choice.worker
    if not worker.packs_rows and worker.use_prefix_sharing != "on":
        return
    text, args = text_part(model), choice.worker.model_args
    in_parts = why_no_parts(text)
    keys = {
        "use_sequence_packing": (why_no_packs(text), ("true", "false") if worker.use_sequence_packing else None),
        "use_prefix_sharing": (in_parts, ("on", "off") if worker.use_prefix_sharing == "on" else None),
        "model_args.ulysses_size": (in_parts, (args.ulysses_size, 1) if args.ulysses_size > 1 else None),
    }
    for name, (why, values) in keys.items():
        if why and values is not None:
            key = f"{choice.role.name}.{name}"
            yield Problem(
                f"{key}: {values[0]} with {args.model_name_or_path}, {why}. Set it to "
                f"{values[1]}; use_dynamic_batching_in_train and _in_infer keep padding small.",
                (key, f"{choice.role.name}.model_args.model_name_or_path"),
            )
    yield from head_problems(choice, text)
    yield from rope_problems(choice, text)
