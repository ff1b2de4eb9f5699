"""Converts epochs to steps, once the rows are counted."""

import logging
import math
from fractions import Fraction
from typing import TypeVar

from roll.configs.checks.roles import schedule_warnings
from roll.configs.plan.describe import counted, run_length
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig

logger = logging.getLogger(__name__)
C = TypeVar("C", bound=RunConfig)
P = TypeVar("P", bound=RunPlan)


def of_known_length(config: C, plan: P, num_rows: int, rows_per_step: int) -> tuple[C, P]:
    """The settings and the plan of a run whose training has so many rows: where num_train_epochs says how long it is,
    its max_steps and all schedules follow from them. The last step is whole, of rows of the next epoch.

    Example: 3 epochs of 10 rows, 4 in a step, are 8 steps.
    """
    if config.num_train_epochs is None or not config.counts_epochs:
        return config, plan
    steps = math.ceil(Fraction(str(config.num_train_epochs)) * num_rows / rows_per_step)
    logger.info(
        "%s of %s, %d in a step, are %s",
        run_length(config).split(" (")[0],
        counted(num_rows, "row"),
        rows_per_step,
        counted(steps, "step"),
    )
    plan = plan.over(steps)
    for warning in schedule_warnings(plan):
        logger.warning("%s", warning)
    return config.model_copy(update={"max_steps": steps}), plan
