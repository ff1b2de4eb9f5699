"""Checks of environment variables: those that `system_envs` sets, and those that workers inherit."""

from collections.abc import Iterator, Mapping

from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.tested import ALLOWED, inherited_text, refused_variables
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN

_AGREED = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO")  # or a communicator fails or hangs


def variable_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield the variables of `system_envs` that change what a role computes, or where it does."""
    of_run: set[str] = set()
    for name, worker in config.model_roles.items():
        engine = spec_of(worker.strategy_name).tested
        for variable, why in refused_variables(engine, name, _variables_of(config, worker), worker.allowed_arguments):
            if variable in worker.system_envs:
                key = f"{name}.system_envs.{variable}"
            elif variable in of_run:
                continue
            else:
                of_run.add(variable)
                key = f"system_envs.{variable}"
            yield Problem(f"{key} cannot be set: {why}", (key,))
    yield from _disagreements(config)


def allowed_warnings(config: RunConfig) -> Iterator[str]:
    """Name the arguments and variables that were not tested here, and that the YAML lets through."""
    for name, worker in config.model_roles.items():
        if worker.allowed_arguments:
            yield (
                f"{name}.{ALLOWED} lets through what was not tested here: {', '.join(worker.allowed_arguments)}. "
                "Compare train_infer/log_prob_diff_mean with and without it."
            )


def inherited_problems(config: RunConfig, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the variables of this process that workers would inherit, and `system_envs` does not replace."""
    found: dict[str, str] = {}
    for name, worker in config.model_roles.items():
        replaced = _variables_of(config, worker)
        variables = {key: value for key, value in environment.items() if key not in replaced}
        engine = spec_of(worker.strategy_name).tested
        for variable, why in refused_variables(engine, name, variables, worker.allowed_arguments, inherited=True):
            found.setdefault(variable, inherited_text(variable, name, why))
    yield from (Problem(text, (), "machine") for text in found.values())


def _variables_of(config: RunConfig, worker: WorkerConfig) -> dict[str, str]:
    return {**config.system_envs, **worker.system_envs}


def _disagreements(config: RunConfig) -> Iterator[Problem]:
    """Find variables of NCCL that differ where weights are broadcast from trainer to engines: these have devices of
    their own."""
    sender, engine = config.model_roles.get(ACTOR_TRAIN.name), config.model_roles.get(ACTOR_INFER.name)
    if sender is None or engine is None or {*(engine.device_mapping or ())} <= {*(sender.device_mapping or ())}:
        return
    for name in _AGREED:
        first, second = (_variables_of(config, worker).get(name) for worker in (sender, engine))
        if first != second:
            keys = (f"{ACTOR_TRAIN.name}.system_envs.{name}", f"{ACTOR_INFER.name}.system_envs.{name}")
            yield Problem(
                f"{keys[0]} is {first or 'not set'}, but {keys[1]} is {second or 'not set'}: the group in which "
                f"weights are broadcast from one to the other would fail or hang. Set system_envs.{name}.",
                keys,
            )
