"""Checks of the reward that a program reports."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.configs.base import LARGEST_REWARD
from roll.rewards.base import finite


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
    is a mapping with a number for each, or one number for all; it may stand alone. Raises ValueError for anything
    else."""
    if isinstance(value, Mapping) and sides and set(value) == set(sides):
        value = {"reward": value}
    parts: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"reward": value}
    reward, metrics = parts.get("reward"), parts.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics are numbers by name, not {reprlib.repr(metrics)}")
    checked = {str(name): _number(number, "metrics are finite numbers by name") for name, number in metrics.items()}
    if not sides:
        return Outcome(_reward(reward), checked)
    if not isinstance(reward, Mapping):
        reward = dict.fromkeys(sides, reward)
    if set(reward) != set(sides):
        raise ValueError(f"a reward is a number for each of {', '.join(sides)}, not {reprlib.repr(dict(reward))}")
    by_side = {side: _reward(reward[side]) for side in sides}
    by_name = {f"reward_{side}": number for side, number in by_side.items()}
    return Outcome(by_side[sides[0]], {**checked, **by_name}, by_side)


def _reward(value: object) -> float:
    what = f"a reward is a number up to {LARGEST_REWARD:g}"
    if abs(reward := _number(value, what)) > LARGEST_REWARD:
        raise ValueError(f"{what}, not {reward:g}")
    return reward


def _number(value: object, what: str) -> float:
    if (number := finite(value)) is None:
        raise ValueError(f"{what}, not {reprlib.repr(value)}")
    return number
