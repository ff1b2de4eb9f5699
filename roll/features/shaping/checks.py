"""Checks of `experience_operators`, and the part of a step that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from roll.configs.load.validate import validate
from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.operators import EXPERIENCE_OPERATORS
from roll.configs.sections.run import RunConfig
from roll.configs.tables.features import FeaturePlugin
from roll.errors import ConfigError
from roll.utils.imports import is_missing, split

if TYPE_CHECKING:
    from roll.rl.parts import StepPart


def experience_problems(config: RunConfig) -> Iterator[Problem]:
    """Names and arguments of `experience_operators`; code of the user's own is not imported."""
    if not isinstance(config, AlgorithmConfig):
        return
    key = "experience_operators"
    for place, entry in enumerate(config.experience_operators):
        at, known = f"{key}[{place}]", EXPERIENCE_OPERATORS.get(entry.name)
        if known is None:
            try:
                split(entry.name, dict.fromkeys(EXPERIENCE_OPERATORS, ""))
            except ImportError as error:
                yield Problem(f"{at}.name: {error}.{did_you_mean(entry.name, EXPERIENCE_OPERATORS)}", (key,))
            continue
        checked = validate(known.args, entry.args)
        yield from (Problem(f"{at}.args.{problem.text}", (key,)) for problem in checked.problems)
        if config.estimator.per_turn and not known.drops:
            yield Problem(
                f"{at}: {entry.name} changes the reward of a trajectory, but adv_estimator: {config.adv_estimator} "
                "uses the rewards of single turns. Choose another adv_estimator, or remove the operator.",
                (key, "adv_estimator"),
            )


def code_problems(config: RunConfig) -> Iterator[Problem]:
    """Check `experience_operators` of the user's own: each is imported and built as the run builds it."""
    if not isinstance(config, AlgorithmConfig):
        return
    key = "experience_operators"
    of_users = [
        (f"{key}[{place}]", entry)
        for place, entry in enumerate(config.experience_operators)
        if entry.name not in EXPERIENCE_OPERATORS
    ]
    if not of_users or any(experience_problems(config)):
        return
    from roll.features.shaping.chain import built  # brings torch

    for at, entry in of_users:
        try:
            built(at, entry)
        except ConfigError as error:
            yield Problem(str(error), (key,), "place" if is_missing(entry.name) else "run")


def step_parts(config: AlgorithmConfig, plan: RunPlan) -> Iterator[StepPart]:
    from roll.features.shaping.chain import Shaping  # brings torch

    if config.has_training and config.experience_operators:
        yield Shaping(config.experience_operators)


PLUGIN = FeaturePlugin(problems=experience_problems, code_problems=code_problems, step_parts=step_parts)
