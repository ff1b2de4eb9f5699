"""Means and deviations of rewards and advantages: by group, over time, and over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

AllReduceSum = Callable[[Sequence[float]], list[float]]
"""Sums each number over the data-parallel ranks. Collective: every rank calls it equally often, with rows or
without."""

STD_EPSILON = 1e-6
VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True)
class RunningMoments:
    """Mean and deviation of all values seen so far (Chan's parallel form of Welford's update). Three numbers, so
    `dataclasses.asdict` saves it and `RunningMoments(**saved)` restores it.

    Example: RunningMoments().update([1, 2]).update([6]) has mean 3 and std sqrt(7).
    """

    count: int = 0
    mean: float = 0.0
    squared_deviations: float = 0.0

    def update(self, values: np.ndarray) -> RunningMoments:
        """The moments with these values too; NaN (a failed attempt) is left out."""
        values = np.asarray(values, np.float64)
        values = values[~np.isnan(values)]
        if not len(values):
            return self
        count, mean = self.count + len(values), float(values.mean())
        shift = mean - self.mean
        return RunningMoments(
            count=count,
            mean=self.mean + shift * len(values) / count,
            squared_deviations=self.squared_deviations
            + float(np.square(values - mean).sum())
            + shift * shift * self.count * len(values) / count,
        )

    @property
    def std(self) -> float:
        """Sample deviation (n - 1); 0 of fewer than two values."""
        return float(np.sqrt(self.squared_deviations / (self.count - 1))) if self.count > 1 else 0.0


@dataclass(frozen=True)
class KeyMoments:
    """Moments of all rows that share a row's key, for each row. NaN values are left out. [R] each."""

    count: np.ndarray  # int64, 0 where every value of the key is NaN
    mean: np.ndarray  # float64, 0 where count is 0
    std: np.ndarray  # float64, sample deviation (n - 1), 0 where count < 2


def moments_by_key(values: np.ndarray, keys: np.ndarray) -> KeyMoments:
    """Equal values have exactly their value as mean and exactly 0 as deviation.

    Example: values [1 0 5 NaN], keys [a a b b] -> count [2 2 1 1], mean [.5 .5 5 5], std [.707 .707 0 0].
    """
    names, index = np.unique(keys, return_inverse=True)
    valid = ~np.isnan(values)
    at, known = index[valid], values[valid].astype(np.float64)
    count = np.bincount(at, minlength=len(names))

    # Sums are of distances from the smallest value, so that equal values leave no rounding behind.
    smallest = np.full(len(names), np.inf)
    np.minimum.at(smallest, at, known)
    smallest[count == 0] = 0.0
    mean = smallest + np.bincount(at, known - smallest[at], len(names)) / np.maximum(count, 1)
    variance = np.bincount(at, np.square(known - mean[at]), len(names)) / np.maximum(count - 1, 1)
    return KeyMoments(count[index], mean[index], np.sqrt(variance)[index])


def divide_by_std(values: np.ndarray, std: np.ndarray | float) -> np.ndarray:
    """values / (std + 1e-6); a deviation of exactly 0 (equal values, or fewer than two) says nothing and divides
    nothing."""
    return values / np.where(std == 0, 1.0, std + STD_EPSILON)


def clip_fraction(values: np.ndarray, limit: float) -> float:
    """Share of values outside [-limit, limit]; 0 of none."""
    return float(np.mean(np.abs(values) > limit)) if len(values) else 0.0


def whiten(
    values: np.ndarray, all_reduce_sum: AllReduceSum, center: bool = True, weights: np.ndarray | None = None
) -> np.ndarray:
    """Values over all ranks brought to deviation 1 and, with `center`, mean 0. Collective.

    Without `center` values are only scaled, so that a 0 stays 0. One value in all is centred and not scaled; none is
    fine. `weights`: how often each value counts, 1 by default.
    """
    values = values.astype(np.float64)
    weights = np.ones(len(values)) if weights is None else weights
    sums = (float(weights @ powers) for powers in (np.ones(len(values)), values, np.square(values)))
    count, total, squares = all_reduce_sum([*sums])
    if count == 0:
        return values
    mean = total / count
    scale = 1.0 if count < 1.5 else 1 / np.sqrt(max(squares - total * mean, 0.0) / (count - 1) + VARIANCE_EPSILON)
    return (values - mean if center else values) * scale
