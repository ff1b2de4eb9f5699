"""The operators that choose rows before training, in one table: their arguments, and where their code is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.data import OperatorConfig, Place, operator_entries

Part = Literal["prompt", "response", "both"]
Missing = Literal["error", "keep", "drop"]
PART = "Which part of a row is read: prompt, response, or both. Rows of RLVR have prompts only."
MISSING = "What happens to a row without a number there: the run stops, the row stays, or it is dropped."

DATA_JUICER = "data_juicer"


class DeduplicateArgs(Settings):
    """`args` of deduplicate: the first of several rows that say the same stays."""

    part: Part = setting("both", PART)


class LengthArgs(Settings):
    """`args` of length."""

    unit: Literal["characters", "tokens"] = setting(
        "characters",
        "What is counted: characters, or tokens of the trained model's tokenizer, without a chat template.",
    )
    part: Part = setting("prompt", f"{PART} If a row has several responses, each must fit.")
    min: int = setting(0, "The shortest that stays.", ge=0)
    max: int | None = setting(None, "The longest that stays.", ge=0)


class PassRateArgs(Settings):
    """`args` of pass_rate: how often a model solves a row."""

    column: str = setting("pass_rate", "Column with it, from 0 (never) to 1 (always).", min_length=1)
    rollouts: Place | None = setting(
        None,
        "A folder that rollout_mock.mode: dump has written, or a file of it: the rate is that of the attempts there, "
        "failed ones left out, at the row of the same id. Instead of the column.",
        min_length=1,
    )
    solved_at: float = setting(1.0, "With rollouts: an attempt of this reward or more has solved its row.")
    min: float = setting(0.0, "The lowest rate that stays.", ge=0, le=1)
    max: float = setting(1.0, "The highest rate that stays.", ge=0, le=1)
    missing: Missing = setting("error", MISSING)


class ContaminationArgs(Settings):
    """`args` of contamination: rows go that share words with the evaluation sets, the other data_args of the run."""

    part: Part = setting("prompt", f"{PART} Of the evaluation's rows it is the prompt.")
    ngram: int = setting(13, "Words of an n-gram. Of texts with fewer words, only the same ones count.", ge=1)
    share: float = setting(
        0.0,
        "A row goes if it has at least this share of the n-grams of one of the evaluation's rows, and at least one.",
        ge=0,
        le=1,
    )


class DataJuicerArgs(Settings):
    """`args` of data_juicer:NAME."""

    column: str | None = setting(
        None,
        "Column whose text the operator reads, and may change. Default: prompt and response, which it may not.",
        min_length=1,
    )
    op_args: dict[str, Any] = setting({}, "Arguments of the operator itself, as Data-Juicer documents them.")


@dataclass(frozen=True)
class Operator:
    """One row of a table. `function`: package.module:object. It is called with the rows, an object of `args` and the
    Context; one between rollout and training is made by `args` alone. `files`: those of its arguments that name files.
    `compares`: it needs evaluation sets. `drops`: it leaves groups out; else it changes rewards."""

    name: str
    args: type[Settings]
    function: str
    files: tuple[str, ...] = ()
    compares: bool = False
    drops: bool = False


OPERATORS: Mapping[str, Operator] = {
    row.name: row
    for row in (
        Operator("deduplicate", DeduplicateArgs, "roll.features.operators.texts:deduplicate"),
        Operator("length", LengthArgs, "roll.features.operators.bounds:length"),
        Operator("pass_rate", PassRateArgs, "roll.features.operators.bounds:pass_rate", files=("rollouts",)),
        Operator("contamination", ContaminationArgs, "roll.features.operators.texts:contamination", compares=True),
    )
}
_DATA_JUICER = Operator(DATA_JUICER, DataJuicerArgs, "roll.features.operators.checks:run_op")


def operator_of(name: str) -> Operator | None:
    """The row of a name; None for a function of the user's own."""
    return _DATA_JUICER if data_juicer_op(name) is not None else OPERATORS.get(name)


def data_juicer_op(name: str) -> str | None:
    """Example: "text_length_filter" of data_juicer:text_length_filter; None of any other name."""
    package, _, op = name.partition(":")
    return op if package == DATA_JUICER and op else None


# The operators between rollout and training, in one table: their arguments, and where their code is.

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


EXPERIENCE_OPERATORS: Mapping[str, Operator] = {
    row.name: row
    for row in (
        Operator("reward_shaping", RewardShapingArgs, "roll.features.shaping.builtins:RewardShaping"),
        Operator("mean_filter", MeanFilterArgs, "roll.features.shaping.builtins:mean_filter", drops=True),
        Operator("std_filter", StdFilterArgs, "roll.features.shaping.builtins:std_filter", drops=True),
    )
}
