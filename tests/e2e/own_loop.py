"""A rollout loop of the user's own, for whole runs."""

from dataclasses import replace

from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup


class SecondHalf:
    """Leaves half of the reward to answers of groups with an even number."""

    def __init__(self, inner: Rollouter):
        self.inner = inner

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        group = await self.inner.run_group(task, group_id, step, generate)
        share = 0.5 if group_id % 2 == 0 else 1.0
        rows = (row.rewarded(row.reward * share, {"paid_share": share}) for row in group.trajectories)
        return replace(group, trajectories=tuple(rows))
