"""Checks of the reward that a program reports."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roll.configs.base import LARGEST_REWARD


@dataclass(frozen=True)
class Outcome:
    """Reward and metrics of a session. `sides`: the reward of each side, where there are several; `reward` is then the
    first one's."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    sides: Mapping[str, float] = field(default_factory=dict)

    def of(self, side: str) -> float:
        return self.sides.get(side, self.reward)


def outcome_of(value: object, sides: Sequence[str] = ()) -> Outcome:
    """The outcome that a program reports: a reward, or a mapping with `reward` and `metrics`. With `sides` the reward
    is a mapping with a number for each, or one number for all; it may stand alone. Raises ValueError, and nothing else,
    for anything else."""
    if isinstance(value, Mapping) and sides and set(value) == set(sides):
        value = {"reward": value}
    parts: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"reward": value}
    reward, metrics = parts.get("reward"), checked_metrics(parts.get("metrics"))
    if not sides:
        return Outcome(checked_reward(reward), metrics)
    if not isinstance(reward, Mapping):
        reward = dict.fromkeys(sides, reward)
    if set(reward) != set(sides):
        raise ValueError(f"a reward is a number for each of {', '.join(sides)}, not {_shown(dict(reward))}")
    by_side = {side: checked_reward(reward[side]) for side in sides}
    by_name = {f"reward_{side}": number for side, number in by_side.items()}
    return Outcome(by_side[sides[0]], {**metrics, **by_name}, by_side)


def checked_reward(value: object) -> float:
    """Raises ValueError, and nothing else, for what is no number, or one beyond LARGEST_REWARD."""
    reward = _number(value)
    if reward is None or abs(reward) > LARGEST_REWARD:
        raise ValueError(f"a reward is a number up to {LARGEST_REWARD:g}, not {_shown(value)}")
    return reward


def checked_metrics(metrics: object) -> dict[str, float]:
    """Finite numbers by name. Raises ValueError, and nothing else, for others."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics are numbers by name, not {_shown(metrics)}")
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        number = _number(value)
        if number is None:
            raise ValueError(f"metrics are finite numbers by name, and {_shown(name)} is {_shown(value)}")
        checked[str(name)] = number
    return checked


def _number(value: object) -> float | None:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond the floats
        return None
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    """A short text, also of an int with more digits than Python writes."""
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too long to show"
