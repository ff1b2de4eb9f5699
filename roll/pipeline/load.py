"""A YAML becomes a checked configuration with its plan, or a ConfigError with everything that is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.checks import config_problems, config_warnings
from roll.configs.load.known_keys import known_keys
from roll.configs.load.loader import load_tree
from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import BatchPlan, build_plan
from roll.configs.problems import Problem, nearest, together
from roll.errors import ConfigError
from roll.pipeline.own_code import own_code_problems
from roll.pipeline.preflight import role_strategy_problems, role_strategy_warnings

C = TypeVar("C", bound=AlgorithmConfig)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A configuration without contradictions."""

    config: C
    plan: BatchPlan
    warnings: tuple[str, ...]


def load(
    cls: type[C],
    directory: Path,
    name: str,
    overrides: Sequence[str] = (),
    problems_of: Callable[[C], list[Problem]] = lambda config: [],
    warnings_of: Callable[[C], list[str]] = lambda config: [],
) -> Loaded[C]:
    """Composes, checks and plans. `problems_of` and `warnings_of` are the checks of one pipeline. Looks at nothing but
    the YAML, its fragments, and the module of an estimator or a loss of the user's own: the plan depends on it."""
    composed = load_tree(directory, name, overrides, cls)
    checked = validate(cls, composed.settings)
    problems = list(checked.problems)
    if checked.config is not None:
        later = config_problems(checked.config) + role_strategy_problems(checked.config) + problems_of(checked.config)
        later += own_code_problems(checked.config)
        problems += checked.about_sound_keys(later)
    if problems:
        raise ConfigError(*together(problem.text for problem in problems))
    assert checked.config is not None
    warnings = [*checked.warnings, *config_warnings(checked.config), *role_strategy_warnings(checked.config)]
    warnings += warnings_of(checked.config)
    for key in composed.unused:
        match = nearest(key, known_keys(cls), cutoff=0.8)
        if match and match not in composed.settings:
            warnings.append(f"{key} comes from a fragment and nothing uses it. Did you mean {match}?")
    return Loaded(checked.config, build_plan(checked.config), tuple(together(warnings)))
