"""Checks of environment variables: those that `system_envs` sets, and those that workers inherit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.variables import AGREED, inherited, refused_variables
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN

_OF_PLUGINS = ("VLLM_ASCEND_",)  # read by another package


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


def variable_warnings(config: RunConfig) -> Iterator[str]:
    """Warn of variables with the name of an engine that its installed version does not read."""
    for name, worker in config.model_roles.items():
        registry = spec_of(worker.strategy_name).registry
        if registry is None:
            continue
        for variable in _variables_of(config, worker):
            if not variable.startswith(f"{registry.package.upper()}_") or variable.startswith(_OF_PLUGINS):
                continue
            if not _is_read(registry.package, variable):
                where = f"{name}.system_envs" if variable in worker.system_envs else "system_envs"
                yield (
                    f"{where}.{variable} does nothing for {name}: the installed {registry.package} reads no such "
                    f"variable. It may have become an argument ({name}.strategy_args.strategy_config)."
                )


@cache
def _is_read(package: str, variable: str) -> bool:
    """Whether a package's source text mentions a variable; True if it is not installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return True
    files = Path(next(iter(spec.submodule_search_locations))).rglob("*.py")
    likely_first = sorted(files, key=lambda path: "env" not in path.name)
    return any(variable.encode() in path.read_bytes() for path in likely_first)


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
