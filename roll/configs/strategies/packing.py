"""Reasons why rows of a Hugging Face model cannot be packed, as far as config.json tells. Anything else is checked when
the model is loaded (roll/models/sequences/check.py)."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.plan.layout import ParallelSizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import CHANGING_ROPE, rope_kinds, text_part, why_no_packs, why_no_parts


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


def head_problems(choice: Choice, text: Mapping[str, Any]) -> Iterator[Problem]:
    """Heads that do not divide, by the config.json of the model (of its text part). Key-value heads may be too few:
    they are repeated."""
    together, heads = choice.worker.model_args.ulysses_size, text.get("num_attention_heads")
    if type(heads) is int and heads % together:
        key = f"{choice.role.name}.model_args.ulysses_size"
        model = choice.worker.model_args.model_name_or_path
        yield Problem(
            f"{key}: {together} does not divide the {heads} attention heads of {model}.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )


def rope_problems(choice: Choice, text: Mapping[str, Any]) -> Iterator[Problem]:
    """Rotary frequencies that a model takes anew from the positions it is given: those of a part are other ones than
    those of the whole sequence."""
    args, key = choice.worker.model_args, f"{choice.role.name}.model_args.ulysses_size"
    if args.ulysses_size > 1 and (changing := sorted(rope_kinds(text) & CHANGING_ROPE)):
        yield Problem(
            f"{key}: {args.ulysses_size} with {args.model_name_or_path}, whose config.json has rope_type "
            f"{changing[0]}: its rotary frequencies follow the longest position that a rank sees. Set it to 1.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )


# `ulysses_size` of the strategies whose ranks may share sequences: the sizes that follow from it.


def sizes(worker: WorkerConfig) -> ParallelSizes:
    together = worker.model_args.ulysses_size
    return ParallelSizes(data=max(1, worker.num_workers // together), sequence=together)


def ranks_problems(choice: Choice) -> Iterator[Problem]:
    """Ranks that do not divide into groups."""
    worker, name = choice.worker, choice.role.name
    together, ranks = worker.model_args.ulysses_size, worker.num_workers
    if ranks % together:
        key = f"{name}.model_args.ulysses_size"
        yield Problem(
            f"{key}: {together} does not divide the role's {ranks} ranks. Use a multiple of {together} devices.",
            (key, f"{name}.device_mapping", f"{name}.world_size"),
        )
