"""Groups with other rewards, for operators and for code of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roll.types.rollout import TrajectoryGroup

SAMPLED = "sampled_reward"


def with_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> TrajectoryGroup:
    """The group with these rewards of its attempts, in their order, on all rows of each. Failed ones stay without. The
    reward that an attempt had at first is told beside it, as `sampled_reward`, to readers of rollouts."""
    new = {attempt.index: float(reward) for attempt, reward in zip(group.attempts, rewards, strict=True)}
    rows = [
        row
        if row.failure is not None
        else replace(row, reward=new[row.index], extra={SAMPLED: row.reward, **row.extra})
        for row in group.trajectories
    ]
    return replace(group, trajectories=tuple(rows))
