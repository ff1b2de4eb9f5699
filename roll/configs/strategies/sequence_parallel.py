"""`ulysses_size` of the strategies whose ranks may share sequences: sizes, and what stands in the way."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.plan.layout import ParallelSizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import CHANGING_ROPE, rope_kinds


def sizes(worker: WorkerConfig) -> ParallelSizes:
    together = worker.model_args.ulysses_size
    return ParallelSizes(data=max(1, worker.num_workers // together), sequence=together)


def ranks_problems(choice: Choice) -> Iterator[Problem]:
    """Ranks that do not divide into groups."""
    worker, name = choice.worker, choice.role.name
    together, ranks = worker.model_args.ulysses_size, worker.num_workers
    if ranks % together:
        fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
        key = f"{name}.model_args.ulysses_size"
        yield Problem(
            f"{key}: {together} does not divide the role's {ranks} ranks. Use one of {fitting}, or a multiple of "
            f"{together} devices.",
            (key, f"{name}.device_mapping", f"{name}.world_size"),
        )


def head_problems(choice: Choice, text: Mapping[str, Any]) -> Iterator[Problem]:
    """Heads that do not divide, by the config.json of the model (of its text part). Key-value heads may be too few:
    they are repeated."""
    together, heads = choice.worker.model_args.ulysses_size, text.get("num_attention_heads")
    if type(heads) is int and heads % together:
        key = f"{choice.role.name}.model_args.ulysses_size"
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        model = choice.worker.model_args.model_name_or_path
        yield Problem(
            f"{key}: {together} does not divide the {heads} attention heads of {model}. Sizes that do: {fitting}.",
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
