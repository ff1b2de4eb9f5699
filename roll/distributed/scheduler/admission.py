"""Arithmetic of when a group of trajectories may start, and when a step may take its groups; without a clock.

Groups are numbered in the order of the data. A group that starts under policy version v may be trained on in step
v + max_staleness at the latest: its deadline. A step takes the oldest of the finished groups as soon as those that it
leaves can all meet theirs. Steps and versions count alike: version v is what v steps have trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll.configs.plan.rollout_bounds import RolloutBounds


def can_take(finished: Mapping[int, int], active: Mapping[int, int], step: int, num_groups: int) -> bool:
    """True if `step` may take the oldest `num_groups` finished groups: in the order of their numbers, the i-th of the
    groups left (from 1) then meets its deadline, since i <= (deadline - step) * num_groups.

    `finished` and `active` (the finished ones included) count groups by deadline. An older group never has a later
    deadline.

    Example: with 2 groups a step, step 3 may take two finished groups of deadline 4 and leave two of deadline 4 that
    still run, but not three.
    """
    missing, left = num_groups, 0
    for deadline in sorted(active):
        taken = min(missing, finished.get(deadline, 0))
        missing -= taken
        left += active[deadline] - taken
        if left > (deadline - step) * num_groups:
            return False
    return missing == 0


def resumed_deadlines(admitted_at: Sequence[int], step: int, bounds: RolloutBounds) -> list[int]:
    """The deadlines of groups, oldest first, that were admitted at these versions, where a run goes on with `step`, it
    may be under other bounds. A deadline that the bounds give and that cannot be met is put off until it can. For a
    group that is sampled again that is no harm; one that is finished is too old then, see `is_too_old`.

    Example: 2 groups a step that may be 1 step old, going on with step 5: three groups of version 4 have the deadlines
    5, 5 and 6.
    """
    return [max(version + bounds.max_staleness, step + i // bounds.num_groups) for i, version in enumerate(admitted_at)]


def is_too_old(admitted_at: int, deadline: int, bounds: RolloutBounds) -> bool:
    """True if tokens of that version may be trained on only before the deadline."""
    return admitted_at + bounds.max_staleness < deadline
