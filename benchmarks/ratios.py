"""How sure the median of ratios is: for benchmarks that run in interleaved pairs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The narrowest pair of order statistics, equally far from both ends, that holds the median with this confidence,
    whatever the distribution. None where there are too few values for it.

    Example: of 10 values the second and the ninth, which hold it with .979.
    """
    ordered, total = sorted(values), len(values)
    outside, left_out = 0.0, -1
    while 2 * (outside + comb(total, left_out + 1) / 2**total) <= 1 - confidence:
        left_out += 1
        outside += comb(total, left_out) / 2**total
    return None if left_out < 0 else (ordered[left_out], ordered[total - 1 - left_out])


def describe_ratios(values: Sequence[float]) -> str:
    """Example: "median 1.42 x of 10 pairs, 95 % interval 1.38 to 1.47"."""
    interval = median_interval(values)
    if interval is None:
        sure = f"too few for an interval: {', '.join(f'{value:.2f}' for value in sorted(values))}"
    else:
        sure = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    return f"median {statistics.median(values):.2f} x of {len(values)} pairs, {sure}"
