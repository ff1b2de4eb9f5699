"""Filters that keep groups worth training on, as pure functions over a group's rewards (`query_filter_config`). Failed
attempts (NaN) are left out; a group with fewer than two rewards is kept."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roll.algorithms.normalize import moments_by_key
from roll.types.rollout import TrajectoryGroup

Filter = Callable[[TrajectoryGroup], bool]
FILTER_ARGS: Mapping[str, tuple[str, ...]] = {
    "no_filter": (),
    "mean_filter": ("threshold_down", "threshold_up"),
    "std_filter": ("std_threshold",),
}


def keep_by_mean(group: TrajectoryGroup, threshold_down: float, threshold_up: float) -> bool:
    """True if the mean reward, of any side, lies strictly between the thresholds: neither hopeless nor solved."""
    moments = map(_moments, group.by_side)
    return any(count < 2 or threshold_down < mean < threshold_up for count, mean, _ in moments)


def keep_by_std(group: TrajectoryGroup, std_threshold: float) -> bool:
    """True if the standard deviation of the rewards (n - 1), of any side, is above the threshold."""
    return any(count < 2 or std > std_threshold for count, _, std in map(_moments, group.by_side))


def filter_problems(type_: str, args: Mapping[str, Any], key: str) -> list[str]:
    known = FILTER_ARGS.get(type_)
    if known is None:
        return [f"{key}.type: {type_!r} is not one of {', '.join(FILTER_ARGS)}"]
    expected = f"{type_} takes {', '.join(known) or 'none'}"
    problems = [f"{key}.filter_args has {name!r}; {expected}" for name in args if name not in known]
    problems += [
        f"{key}.filter_args.{name}: {value!r} is not a number"
        for name, value in args.items()
        if name in known and (isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value))
    ]
    if type_ == "mean_filter" and not problems:
        down, up = args.get("threshold_down", -math.inf), args.get("threshold_up", math.inf)
        if down >= up:
            problems.append(
                f"{key}.filter_args: threshold_down {down:g} is not below threshold_up {up:g}, so every group would be "
                "dropped"
            )
    if known and not args:
        problems.append(f"{key}.filter_args is empty, so {type_} would keep every group; {expected}")
    return problems


def make_filter(type_: str, args: Mapping[str, Any]) -> Filter:
    """The filter of one domain: True keeps the group. A threshold that is not given does not filter."""
    if type_ == "mean_filter":
        down, up = float(args.get("threshold_down", -math.inf)), float(args.get("threshold_up", math.inf))
        return lambda group: keep_by_mean(group, down, up)
    if type_ == "std_filter":
        threshold = float(args.get("std_threshold", -math.inf))
        return lambda group: keep_by_std(group, threshold)
    return lambda group: True


def by_domain(filters: Mapping[str, Filter]) -> Filter:
    """One filter for all domains: a group goes to that of its task's domain."""
    return lambda group: filters[group.task.domain](group)


def _moments(group: TrajectoryGroup) -> tuple[int, float, float]:
    """How many rewards are known, their mean and their deviation: of equal rewards exactly that reward, and 0."""
    rewards = group.rewards
    if not len(rewards):
        return 0, 0.0, 0.0
    moments = moments_by_key(rewards, np.zeros(len(rewards)))
    return int(moments.count[0]), float(moments.mean[0]), float(moments.std[0])


# How much shorter the trained answers are than those that were begun: what dropping and cutting do to lengths.


def length_bias(
    begun: Sequence[TrajectoryGroup], trained: Sequence[TrajectoryGroup], cut: Sequence[tuple[int, bool]] = ()
) -> float | None:
    """Mean length of the trained attempts over that of all that were begun; None without any. An attempt that was cut
    counts as far as it came. `cut`: lengths of attempts of groups that were given up, and whether each was whole."""
    trained_lengths = _lengths(trained)[_are_whole(trained)]
    others = [length for length, _ in (*cut, *(attempt for group in begun for attempt in group.surplus))]
    lengths = np.concatenate([_lengths(begun), np.array(others, np.int64)])
    if not len(trained_lengths) or not trained_lengths.sum():
        return None
    return float(trained_lengths.mean() / lengths.mean())


def _lengths(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    return np.concatenate([group.response_lengths for group in groups]) if groups else np.zeros(0, np.int64)


def _are_whole(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    return np.array([attempt.failure is None for group in groups for attempt in group.attempts], bool)
