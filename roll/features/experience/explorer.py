"""The explorer's side of a buffer: what it writes, and how it goes on from what there is. It has no other state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.rows import Experience
from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup


@dataclass(frozen=True)
class Progress:
    """How far an explorer is: whole steps, and the groups that none of them took, though later ones were."""

    steps_done: int
    next_number: int
    missing: tuple[int, ...]

    @classmethod
    def of(cls, buffer: DirectoryBuffer) -> Progress:
        """Example: steps with the groups 0 1 3 and 4 2 5 leave nothing; without the second one, 2 is missing."""
        finished = buffer.finished()
        taken = frozenset().union(*finished)
        next_number = max(taken, default=-1) + 1
        return cls(len(finished), next_number, tuple(sorted(frozenset(range(next_number)) - taken)))

    def groups(self) -> dict[str, Any]:
        """Groups in the form that `RolloutScheduler.restore` takes. Missing groups come first, under their numbers."""
        active = [[number, self.steps_done] for number in self.missing]
        return {"place": 0, "next": self.next_number, "active": active}


class Explorer:
    """Handling of the groups of an explorer, which go to the buffer."""

    def __init__(self, buffer: DirectoryBuffer, num_groups: int, is_in_order: bool):
        """`is_in_order`: the numbers of a step are known before it is sampled, so it is simply sampled again where it
        is not whole. Otherwise its groups are there all at once or not at all: if they are, it is over."""
        self.buffer = buffer
        self._num_groups = num_groups
        buffer.recover()
        if not is_in_order:
            step = len(buffer.finished())
            if numbers := [entry.number for entry in buffer.entries() if entry.step == step]:
                buffer.finish(step, numbers)

    def write_step(self, step: int, groups: StepGroups) -> None:
        """All groups of a step: they are on the disk when it returns."""
        passed = {group.group_id for group in groups.groups}
        whole = with_tokens(groups.sampled)
        self.buffer.write([Experience(step, group, group.group_id in passed) for group in whole])
        self.buffer.finish(step, [group.group_id for group in whole])

    async def hand_over_early(self, group: TrajectoryGroup) -> None:
        """A group whose step its number tells, and about which nothing more is decided."""
        await asyncio.to_thread(self._write_early, group)

    def _write_early(self, group: TrajectoryGroup) -> None:
        (whole,) = with_tokens([group])
        self.buffer.write([Experience(group.group_id // self._num_groups, whole)])


@dataclass(frozen=True)
class StreamingRollouter:
    """Hands over each group as soon as it is there, so that a trainer that does not wait for all (`on_timeout:
    partial`) sees it, and nothing that was sampled is lost with the explorer."""

    rollouter: Rollouter
    explorer: Explorer

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        group = await self.rollouter.run_group(task, group_id, step, generate)
        await self.explorer.hand_over_early(group)
        return group


def with_tokens(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    rows = fetched([group.trajectories for group in groups])
    return [
        TrajectoryGroup(group.task, group.group_id, tuple(attempts), group.surplus, group.greedy_reward)
        for group, attempts in zip(groups, rows, strict=True)
    ]
