"""`model_args.enable_activation_offload` before anything starts."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem


def activation_offload_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from moving activations."""
    key = f"{choice.role.name}.model_args.enable_activation_offload"
    if not choice.worker.model_args.enable_activation_offload:
        return
    if problem := feature_problem(choice, Feature.ACTIVATION_OFFLOAD, "true"):
        yield problem
    if choice.worker.use_torch_compile:
        other = f"{choice.role.name}.use_torch_compile"
        text = f"{key}: true with {other}: true, whose kernels decide themselves what is kept. Set one to false."
        yield Problem(text, (key, other))
