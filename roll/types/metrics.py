"""Metrics as sums, so that ranks and micro batches can be merged without bias before anything is divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

Number = float | torch.Tensor


def _larger(a: Number, b: Number) -> Number:
    if isinstance(a, torch.Tensor):
        return torch.maximum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    return max(a, float(b))


@dataclass
class MetricSums:
    """`means[name] = (sum, count)`, `maxima[name] = value`. Merging adds the former and takes the larger of the latter.

    Inside an update the numbers may be 0-d tensors, so that nothing waits for the device; `to_floats` ends that.
    """

    means: dict[str, tuple[Number, Number]] = field(default_factory=dict)
    maxima: dict[str, Number] = field(default_factory=dict)

    def add(self, name: str, total: Number, count: Number) -> None:
        old = self.means.get(name)
        self.means[name] = (total, count) if old is None else (old[0] + total, old[1] + count)

    def maximum(self, name: str, value: Number) -> None:
        old = self.maxima.get(name)
        self.maxima[name] = value if old is None else _larger(old, value)

    def merge(self, others: Iterable[MetricSums]) -> MetricSums:
        for other in others:
            for name, (total, count) in other.means.items():
                self.add(name, total, count)
            for name, value in other.maxima.items():
                self.maximum(name, value)
        return self

    def to_floats(self) -> MetricSums:
        return MetricSums(
            {name: (float(total), float(count)) for name, (total, count) in self.means.items()},
            {name: float(value) for name, value in self.maxima.items()},
        )

    def result(self, prefix: str = "") -> dict[str, float]:
        """Names with their values; a mean over nothing is left out."""
        floats = self.to_floats()
        values = {name: total / count for name, (total, count) in floats.means.items() if count}
        return {prefix + name: float(value) for name, value in {**values, **floats.maxima}.items()}


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


class SharedWork(NamedTuple):
    """Work of a pass over rows that begin alike: their tokens, how many of them were computed, and how many fewer pairs
    of a token with itself or an earlier one."""

    row_tokens: int = 0
    tokens: int = 0
    saved_pairs: int = 0

    def plus(self, other: SharedWork) -> SharedWork:
        return SharedWork(*(one + another for one, another in zip(self, other, strict=True)))
