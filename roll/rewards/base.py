"""Interface of a reward: its input and its result.

A reward is a function or a class, async or not. A function is called as `reward(sample, **reward_args)`; a class is
built once per worker as `Reward(**reward_args)` and its object called as `object(sample)`. It returns a number or a
RewardResult. Raising an exception, taking too long or returning anything else makes the attempt a failed one: it is
counted and left out of training. With `@takes_batch` a reward that is not async gets a list of answers instead, and
returns a list.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from roll.utils.thinking import after_thinking, opened
from roll.utils.truths import accepted_answers, options_in

if TYPE_CHECKING:
    from roll.types.media import PictureSource


@dataclass(frozen=True)
class RewardInput:
    """One answer to score.

    `response_text` is what the model wrote, with the marks of its thinking, where these are special tokens as well, and
    without other special tokens (as end of sequence). Where the prompt's end opens the thinking, as some chat templates
    do, it begins with that opening ("<think>\\n"), whoever builds the input. `answer` is the part after the thinking,
    "" where that never ends. `raw_text` is what was sampled, with all special tokens and nothing of the prompt.
    `ground_truth` is what the data row holds: a number is not made a text. `pictures` are where those of the prompt
    come from, in their order; `roll.datasets.pictures.decode` reads them. `picture_scales`: how much larger the model
    saw each than its file has it, (vertically, horizontally); empty where the answer is scored after the rollout.
    """

    prompt_text: str
    response_text: str
    ground_truth: Any = None
    domain: str = ""
    finish_reason: str = "stop"  # "length" when the answer was cut at the limit
    num_response_tokens: int = 0
    raw_text: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)  # all columns of the data row
    question: str = ""  # what the prompt asks, without a chat template
    pictures: tuple[PictureSource, ...] = ()
    picture_scales: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "response_text", opened(self.prompt_text, self.response_text))

    @property
    def answer(self) -> str:
        return after_thinking(self.response_text)

    @property
    def accepted(self) -> tuple[str, ...]:
        """Texts of the ground truth, any of which is right (`accepted_answers`). Raises ValueError if it has none."""
        try:
            return accepted_answers(self.ground_truth, options_in(self.payload))
        except ValueError as error:
            raise ValueError(f"ground_truth {error}") from None


def has_form(match: Callable[..., object], pattern: str, text: str) -> bool:
    """Whether all of the text has the form. As everywhere, a `$` at the end of a pattern leaves out a last line break.

    `match`: `fullmatch` of the compiled pattern.
    """
    if match(text) is not None:
        return True
    return pattern.endswith("$") and text.endswith("\n") and match(text[:-1]) is not None


@dataclass(frozen=True)
class RewardResult:
    """A score and what is worth seeing beside it: `metrics` are averaged and tracked, `extra` is shown beside the
    sample rollouts on disk. None is nothing, too."""

    score: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("metrics", "extra"):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, {})
            elif not isinstance(value, Mapping):
                raise TypeError(f"RewardResult: {name} must be a mapping of names to values, not {value!r:.200}")


@dataclass(frozen=True)
class RewardOutcome:
    """Outcome of scoring one answer: a finite `score`, or the reason why there is none (then `score` is NaN), or that
    it `waits` for a score after the rollout (likewise). `may_pass`: another attempt may not fail."""

    score: float
    failure: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    waits: bool = False
    may_pass: bool = False

    def __post_init__(self) -> None:
        if math.isfinite(self.score) == (self.waits or self.failure is not None):
            raise ValueError(f"an outcome has either a finite score or a failure: {self}")

    @staticmethod
    def later() -> RewardOutcome:
        return RewardOutcome(math.nan, waits=True)

    @staticmethod
    def failed(reason: str, seconds: float = 0.0, may_pass: bool = False) -> RewardOutcome:
        return RewardOutcome(math.nan, failure=reason, seconds=seconds, may_pass=may_pass)


Score = float | RewardResult
Reward = Callable[[RewardInput], Score | Awaitable[Score]]
BatchReward = Callable[[Sequence[RewardInput]], Sequence[Score]]

R = TypeVar("R", bound=Callable[..., Any])
REQUIRED = "required_columns"
ROW_CHECK = "row_check"
TAKES_BATCH = "takes_batch"


def requires(*columns: str | tuple[str, ...]) -> Callable[[R], R]:
    """Declares the columns of the data that a reward, function or class, cannot do without; of a tuple it needs one.
    `ground_truth` is the one that data_args.ground_truth names. Data that lack them are refused before a run starts.

    Example: @requires("ground_truth", ("unit_tests", "cases")); @requires() says that it needs none.
    """

    def declare(reward: R) -> R:
        setattr(reward, REQUIRED, columns)
        return reward

    return declare


def takes_batch(reward: R) -> R:
    """Declares that a reward, function or class, is called with a list of answers, those of a group, and returns their
    scores in a list as long."""
    setattr(reward, TAKES_BATCH, True)
    return reward


def finite(value: object) -> float | None:
    """Return the value as a float, None if it is not finite or no number. bool, numpy and 0-d tensors are numbers, a
    text is not."""
    if type(value) is float:  # as most are; to look a type up takes longer
        return value if math.isfinite(value) else None
    if isinstance(value, numbers.Real) or (getattr(value, "shape", None) == () and not isinstance(value, str)):
        try:
            number = float(cast(float, value))
        except OverflowError:  # an integer of hundreds of digits
            return None
        return number if math.isfinite(number) else None
    return None


RowCheck = Callable[..., str | None]


def checks_rows(check: RowCheck) -> Callable[[R], R]:
    """Declares what is asked of every row of the reward's domain before a run starts: `check(columns)` says what is
    wrong with the row, None if it can be scored. Arguments of the reward that it takes as well are given by name."""

    def declare(reward: R) -> R:
        setattr(reward, ROW_CHECK, check)
        return reward

    return declare
