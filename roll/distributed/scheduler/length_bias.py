"""How much shorter the trained answers are than those that were begun: what dropping and cutting do to lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roll.types.rollout import TrajectoryGroup


def length_bias(
    begun: Sequence[TrajectoryGroup], trained: Sequence[TrajectoryGroup], cut: Sequence[tuple[int, bool]] = ()
) -> float | None:
    """Mean length of the trained attempts over that of all that were begun; None without any. A failed attempt is known
    to be at least as long as it is (Kaplan-Meier), since it may have been cut; so are those that redundancy cut. `cut`:
    attempts of groups that were given up, as lengths, and whether each had come to its end. Where the longest are all
    cut, the truth is below the figure.

    Example: answers of 10 and 20 tokens, trained on the first alone: 10 / 15.
    """
    kept = _lengths(trained)[_are_whole(trained)]
    others = [*cut, *(attempt for group in begun for attempt in group.surplus)]
    lengths = np.concatenate([_lengths(begun), np.array([length for length, _ in others], np.int64)])
    are_whole = np.concatenate([_are_whole(begun), np.array([is_whole for _, is_whole in others], bool)])
    if not len(kept) or not kept.sum():
        return None
    return float(kept.mean() / mean_of_censored(lengths, are_whole))


def mean_of_censored(lengths: np.ndarray, are_whole: np.ndarray) -> float:
    """The Kaplan-Meier mean, up to the largest length: what is not whole was cut where it ends, and is longer.

    Example: 1 and 3 whole, 2 cut: of all, 2/3 are longer than 1, and those end at 3 as far as is known: 1 + 2/3 * 2.
    """
    if are_whole.all():
        return float(lengths.mean())
    ends, ordered, whole = np.unique(lengths), np.sort(lengths), np.sort(lengths[are_whole])
    at_risk = len(ordered) - np.searchsorted(ordered, ends, "left")
    ended = np.searchsorted(whole, ends, "right") - np.searchsorted(whole, ends, "left")
    longer = np.cumprod(1 - ended / at_risk)
    return float(np.sum(np.diff(ends, prepend=0) * np.concatenate([[1.0], longer[:-1]])))


def _lengths(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    return np.concatenate([group.response_lengths for group in groups]) if groups else np.zeros(0, np.int64)


def _are_whole(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    return np.array([attempt.failure is None for group in groups for attempt in group.attempts], bool)
