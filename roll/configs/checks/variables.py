"""Checks of environment variables: those that `system_envs` sets, and those that workers inherit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.variables import AGREED, inherited, refused_variables
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN


def variable_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield the variables of `system_envs` that change what a role computes, or where it does."""
    of_run: set[str] = set()
    for name, worker in config.model_roles.items():
        rules = spec_of(worker.strategy_name).variable_rules()
        for variable, why in refused_variables(rules, _variables_of(config, worker)):
            if variable in worker.system_envs:
                key = f"{name}.system_envs.{variable}"
            elif variable in of_run:
                continue
            else:
                of_run.add(variable)
                key = f"system_envs.{variable}"
            yield Problem(f"{key} cannot be set: {why}", (key,))
    yield from _disagreements(config)


def inherited_problems(config: RunConfig, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the variables of this process that workers would inherit, and `system_envs` does not replace."""
    found: dict[str, tuple[str, str]] = {}
    for name, worker in config.model_roles.items():
        replaced = _variables_of(config, worker)
        variables = {key: value for key, value in environment.items() if key not in replaced}
        rules = inherited(spec_of(worker.strategy_name).variable_rules())
        for variable, why in refused_variables(rules, variables):
            found.setdefault(variable, (name, why))
    for variable, (name, why) in found.items():
        yield Problem(inherited_text(variable, name, why), (), "machine")


def inherited_text(variable: str, role: str, why: str) -> str:
    """Say what is wrong with a variable of the environment in which a role's processes start."""
    return f"{variable} is set in the shell or image, and {role} would inherit it: {why}"


def _variables_of(config: RunConfig, worker: WorkerConfig) -> dict[str, str]:
    return {**config.system_envs, **worker.system_envs}


def _disagreements(config: RunConfig) -> Iterator[Problem]:
    """Find variables of NCCL that differ where weights are broadcast from trainer to engines: these have devices of
    their own."""
    sender, engine = config.model_roles.get(ACTOR_TRAIN.name), config.model_roles.get(ACTOR_INFER.name)
    if sender is None or engine is None or {*(engine.device_mapping or ())} <= {*(sender.device_mapping or ())}:
        return
    for name in AGREED:
        values = [_variables_of(config, worker).get(name) for worker in (sender, engine)]
        if values[0] != values[1]:
            keys = [f"{role}.system_envs.{name}" for role in (ACTOR_TRAIN.name, ACTOR_INFER.name)]
            yield Problem(
                f"{keys[0]} is {values[0] or 'not set'}, but {keys[1]} is {values[1] or 'not set'}: the group in which "
                f"weights are broadcast from one to the other would fail or hang. Set system_envs.{name}.",
                tuple(keys),
            )
