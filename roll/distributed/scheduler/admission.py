"""When a group of trajectories may start, and when a step may take its groups: arithmetic alone, without a clock.

Groups are numbered in the order of the data. A group that starts under policy version v may be trained on in step
v + max_staleness at the latest: its deadline. A step takes the oldest of the finished groups as soon as those that it
leaves can all meet theirs. Steps and versions count alike: version v is what v steps have trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RolloutBounds:
    """`num_groups` are trained on in a step; `ahead` more may be under way; the weights are published after every
    `sync_interval` steps; no token is older than `max_staleness` steps when it is trained on. Raises ValueError where a
    step could wait for ever: what is under way has to fit into the steps that its age leaves it.

    Example: 8 groups a step that may be 1 step old: at most 16 under way.
    """

    num_groups: int
    ahead: int = 0
    sync_interval: int = 1
    max_staleness: int = 0

    def __post_init__(self) -> None:
        most = (self.max_staleness + 1) * self.num_groups
        if self.capacity > most:
            raise ValueError(
                f"{self.capacity} groups would be under way, of which only {most} can be trained on in time"
            )

    @property
    def capacity(self) -> int:
        """Groups that run, are finished, or are taken by a step and not yet published over.

        Example: 8 groups a step and 4 ahead: 12; published every second step: 20.
        """
        return self.sync_interval * self.num_groups + self.ahead


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
