"""Checks of `experience_operators`, made before anything is read and without torch."""

from collections.abc import Iterator

from roll.configs.load.validate import validate
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.operators import EXPERIENCE_OPERATORS
from roll.utils.imports import split

KEY = "experience_operators"


def experience_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Names and arguments; code of the user's own is not imported."""
    for place, entry in enumerate(config.experience_operators):
        at, known = f"{KEY}[{place}]", EXPERIENCE_OPERATORS.get(entry.name)
        if known is None:
            try:
                split(entry.name, dict.fromkeys(EXPERIENCE_OPERATORS, ""))
            except ImportError as error:
                yield Problem(f"{at}.name: {error}.{did_you_mean(entry.name, EXPERIENCE_OPERATORS)}", (KEY,))
            continue
        checked = validate(known.args, entry.args)
        yield from (Problem(f"{at}.args.{problem.text}", (KEY,)) for problem in checked.problems)
        if known.drops and checked.config is not None and not checked.config.model_dump(exclude_none=True):
            yield Problem(f"{at}: {entry.name} without args keeps every group. Give a threshold.", (KEY,))
        if config.estimator.per_turn and not known.drops:
            yield Problem(
                f"{at}: {entry.name} changes the reward of whole attempts, and adv_estimator: {config.adv_estimator} "
                "reads what single turns earned. Choose an estimator of whole attempts, or take it out.",
                (KEY, "adv_estimator"),
            )
