"""Metrics of a run so far, as rules ask them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_OF_REWARDS = ("rollout/reward_", "rollout/group_", "val/reward_")
_BLOCKS = 10
_T_95 = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}  # Student's t, two sides, by degrees of freedom


@dataclass(frozen=True)
class Trend:
    """The change of a metric from the first step to the last, by a straight line, and half its interval of 95 %."""

    change: float
    error: float

    @property
    def rises(self) -> bool:
        return self.change > self.error

    @property
    def falls(self) -> bool:
        return -self.change > self.error


@dataclass
class History:
    """Series of metrics by name, each value with its step. `config`: of the run, as run.json has it. `broken`: metrics
    whose last number was not finite, with the step since when."""

    config: Mapping[str, Any] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    step: int = 0

    @classmethod
    def of(cls, rows: Iterable[tuple[int, Mapping[str, Any]]], config: Mapping[str, Any]) -> History:
        history = cls(config)
        for step, metrics in rows:
            history.add(step, metrics)
        return history

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes a row of metrics.jsonl; null there is a number that was not finite."""
        self.step = step
        ignored = _OF_REWARDS if self.config.get("is_pure_opd") else ()  # where nothing is learned from them
        for name, value in metrics.items():
            if ignored and name.startswith(ignored):
                continue
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                self.broken.setdefault(name, step)
            elif isinstance(value, int | float):
                self.broken.pop(name, None)
                self.series.setdefault(name, []).append(value)
                self.steps.setdefault(name, []).append(step)

    def at(self, *path: str) -> Any:
        """The value of a key of the run's configuration; None where it has none."""
        node: Any = self.config
        for name in path:
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    def count(self, name: str) -> int:
        """How often a metric was measured."""
        return len(self.series.get(name, ()))

    def last(self, name: str, number: int) -> float | None:
        """Mean of the last `number` values; None while there are fewer."""
        values = self.series.get(name, ())
        return statistics.fmean(values[-number:]) if len(values) >= number else None

    def first(self, name: str, number: int) -> float | None:
        """Mean of the first `number` values; None while there are fewer."""
        values = self.series.get(name, ())
        return statistics.fmean(values[:number]) if len(values) >= number else None

    def best(self, name: str, number: int) -> float | None:
        """The highest mean of `number` values in a row; None while there are fewer."""
        values = self.series.get(name, ())
        means = (statistics.fmean(values[at : at + number]) for at in range(len(values) - number + 1))
        return max(means, default=None)

    def steady(self, name: str, number: int) -> float | None:
        """The value that a metric had in each of the last `number` measures; None if it moved, or has fewer."""
        values = self.series.get(name, [])[-number:]
        return values[0] if len(values) == number and min(values) == max(values) else None

    def names(self, start: str, end: str = "") -> Iterator[str]:
        """Names of metrics that begin and end so."""
        return (name for name in self.series if name.startswith(start) and name.endswith(end))

    def trend(self, name: str, last: int | None = None) -> Trend | None:
        """Trend over all steps, or over the last ones. None below ten values.

        A straight line through the means of up to ten blocks: steps in a row are alike, means of blocks less so."""
        values = self.series.get(name, [])[-(last or 0) :]
        count = min(_BLOCKS, len(values) // 2)
        if count < _BLOCKS // 2:
            return None
        edges = [round(at * len(values) / count) for at in range(count + 1)]
        means = [statistics.fmean(values[a:b]) for a, b in pairwise(edges)]
        places = range(count)
        line = statistics.linear_regression(places, means)
        errors = sum((mean - line.intercept - line.slope * at) ** 2 for at, mean in zip(places, means, strict=True))
        spread = sum((at - (count - 1) / 2) ** 2 for at in places)
        deviation = math.sqrt(errors / (count - 2) / spread)
        span = count - 1
        return Trend(line.slope * span, _T_95[count - 2] * deviation * span)
