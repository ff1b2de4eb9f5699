"""`model_args.enable_activation_offload` before anything starts."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice


def activation_offload_problems(choice: Choice, offloads: bool, who_can: str) -> Iterator[Problem]:
    """Of a role that learns. `who_can`: strategies that move activations."""
    key = f"{choice.role.name}.model_args.enable_activation_offload"
    if not choice.worker.model_args.enable_activation_offload:
        return
    if not offloads:
        text = f"{key}: {choice.worker.strategy_name} moves no activations. Strategies that do: {who_can}."
        yield Problem(f"{text} Or remove it.", (key, choice.name_key))
    if choice.worker.use_torch_compile:
        other = f"{choice.role.name}.use_torch_compile"
        text = f"{key}: true with {other}: true, whose kernels decide themselves what is kept. Set one to false."
        yield Problem(text, (key, other))
