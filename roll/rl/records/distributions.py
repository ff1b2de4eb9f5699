"""How rewards and lengths of a step are spread, and why attempts failed: what means do not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from roll.types.rollout import TrajectoryGroup
from roll.utils.text import middle_left_out, storable

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_NUM_BINS = 20
_MOST_CAUSES = 10
_MOST_CHARACTERS = 500


def distributions(groups: Sequence[TrajectoryGroup]) -> dict[str, Any]:
    """Distributions as JSON values: `rewards` and `response_lengths` of the attempts that did not fail, `num_attempts`,
    and `failures`, the most frequent causes with their counts."""
    rewards = np.concatenate([group.rewards for group in groups])
    lengths = np.concatenate([group.response_lengths for group in groups])
    there = ~np.isnan(rewards)
    causes = Counter(attempt.failure for group in groups for attempt in group.attempts if attempt.failure is not None)
    return {
        "num_attempts": len(rewards),
        "rewards": spread_of(rewards[there]),
        "response_lengths": spread_of(lengths[there]),
        "failures": [
            {"cause": storable(middle_left_out(cause, _MOST_CHARACTERS)), "count": count}
            for cause, count in causes.most_common(_MOST_CAUSES)
        ],
    }


def spread_of(values: np.ndarray) -> dict[str, list[float]] | None:
    """`quantiles` (QUANTILES) and a histogram of 20 bins between the smallest and the largest; None without values.

    Example: of 0, 0, 0 and 1 the counts are [3, 0, ..., 0, 1] and the edges 0, .05, ..., 1.
    """
    if not len(values):
        return None
    counts, edges = np.histogram(values, bins=_NUM_BINS)
    return {
        "quantiles": np.quantile(values, QUANTILES).tolist(),
        "edges": edges.tolist(),
        "counts": counts.astype(float).tolist(),
    }
