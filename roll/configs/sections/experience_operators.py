"""The operators between rollout and training, in one table: their arguments, and where their code is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.data import OperatorConfig, operator_entries

Scale = Literal["none", "group", "running"]
Op = Literal["add", "subtract", "multiply", "divide", "replace"]


class ExperienceOperatorConfig(OperatorConfig):
    """One of `experience_operators`: its name and its arguments. A name alone stands for one without arguments."""

    name: str = setting(
        ...,
        "reward_shaping, mean_filter or std_filter; package.module:object of your own, a function or a class. "
        "docs/data.md.",
        min_length=1,
    )


ExperienceOperators = Annotated[tuple[ExperienceOperatorConfig, ...], BeforeValidator(operator_entries)]


class RewardShapingArgs(Settings):
    """`args` of reward_shaping: the reward r of every attempt becomes r op (weight x stat)."""

    stat: str = setting(
        "reward",
        "A number of the attempt: reward, response_length (sampled tokens), or the name of one that a reward or an "
        "environment reports beside its score.",
        min_length=1,
    )
    scale: Scale = setting(
        "none",
        "none: the stat as it is. group, running: minus the mean and by the sample deviation + 1e-6 of its group, or "
        "of all attempts of its domain so far, those of this step included; a deviation of 0 divides nothing.",
    )
    op: Op = setting("add", "What is done with it; replace: it is the reward.")
    weight: float = setting(1.0, "Its weight.")


class MeanFilterArgs(Settings):
    """`args` of mean_filter: groups stay whose mean reward lies strictly between the two."""

    threshold_down: float | None = setting(None, "The lower one.")
    threshold_up: float | None = setting(None, "The upper one.")


class StdFilterArgs(Settings):
    """`args` of std_filter: groups stay whose rewards have a larger sample deviation."""

    std_threshold: float = setting(0.0, "The deviation that is too small.")


@dataclass(frozen=True)
class ExperienceOperator:
    """One row of the table. `build`: package.module:object, called with an object of `args`, makes the operator.
    `drops`: it leaves groups out; else it changes rewards."""

    name: str
    args: type[Settings]
    build: str
    drops: bool = False


_HOME = "roll.rl.shaping.builtins"
EXPERIENCE_OPERATORS: Mapping[str, ExperienceOperator] = {
    row.name: row
    for row in (
        ExperienceOperator("reward_shaping", RewardShapingArgs, "roll.rl.shaping.builtins:RewardShaping"),
        ExperienceOperator("mean_filter", MeanFilterArgs, "roll.rl.shaping.builtins:mean_filter", drops=True),
        ExperienceOperator("std_filter", StdFilterArgs, "roll.rl.shaping.builtins:std_filter", drops=True),
    )
}
