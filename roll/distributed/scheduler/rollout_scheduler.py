"""Keeps groups of trajectories in flight and hands them to the training step, in a reproducible order.

Group g of step s has the id s * num_groups + g whatever finishes first, and its task comes from the data in that order.
A group of step s may start once the policy has reached version s - staleness: with `ahead = 0` rollout and training
alternate (staleness 0), with `ahead > 0` that many groups of later steps are already sampled while the trainer works.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.errors import RewardError
from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup
from roll.utils.background import start

Keep = Callable[[TrajectoryGroup], bool]


class TaskSource(Protocol):
    """An endless, reproducible stream of tasks."""

    def next_tasks(self, count: int) -> Sequence[Task]: ...

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class SchedulerSettings:
    """`num_groups` per step; `ahead` groups of later steps may be in flight; a step in which more than
    `max_failed_fraction` of the attempts failed stops the run; `max_replacements` groups per step may replace groups
    that the filter drops."""

    num_groups: int
    ahead: int = 0
    max_failed_fraction: float = 0.1
    max_replacements: int = 0


@dataclass(frozen=True)
class StepGroups:
    """The groups of a step: those to train on, and those that the filter dropped, in the order they were asked for."""

    kept: list[TrajectoryGroup]
    dropped: list[TrajectoryGroup]

    @property
    def sampled(self) -> list[TrajectoryGroup]:
        return self.kept + self.dropped


class RolloutScheduler:
    """Starts groups in order, admits them by staleness, and collects the groups of a step.

    Not thread safe: one driver thread calls `collect`, `resume` and `state_dict`; the groups run on the loop.
    """

    def __init__(
        self,
        loop: EventLoopThread,
        rollouter: Rollouter,
        generate: Generate,
        source: TaskSource,
        settings: SchedulerSettings,
        keep: Keep | None = None,
    ):
        self._loop = loop
        self._rollouter = rollouter
        self._generate = generate
        self._source = source
        self._cursors: dict[int, dict[str, Any]] = {}  # where the data stood before each group in flight
        self._settings = settings
        self._keep = keep
        self._in_flight: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        self._next_group = 0  # the first group that was not started
        self._policy_version = 0

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def filters(self) -> bool:
        return self._keep is not None

    def judged_again(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """The groups of a step once all their rewards are there: what was kept while some were missing is looked at
        again, and so is how many attempts failed. `completed`: `groups.sampled`, in its order."""
        _check_failures(completed, step, self._settings.max_failed_fraction)
        kept, dropped = list(completed[: len(groups.kept)]), list(completed[len(groups.kept) :])
        if self._keep is None:
            return StepGroups(kept, dropped)
        verdicts = [self._keep(group) for group in kept]
        late = [group for group, keeps in zip(kept, verdicts, strict=True) if not keeps]
        return StepGroups([group for group, keeps in zip(kept, verdicts, strict=True) if keeps], dropped + late)

    def start_at(self, step: int) -> None:
        """Goes on where `step` steps are done; the source stands where `state_dict` said. Called before the first
        collect."""
        self._next_group = step * self._settings.num_groups
        self._policy_version = step

    def state_dict(self) -> dict[str, Any]:
        """Where the data stood before the first group that was not collected yet: groups in flight are sampled again on
        resume."""
        return self._cursors[min(self._cursors)] if self._cursors else self._source.state_dict()

    def collect(self, step: int) -> StepGroups:
        """The groups of this step, ordered by group id. Raises RewardError when too many attempts failed."""
        return self._loop.run(self._collect(step))

    def resume(self, policy_version: int) -> None:
        """The engines now sample from this version: groups that waited for it may start."""
        self._policy_version = policy_version
        if self._settings.ahead:
            self._loop.run(self._admit())

    async def _admit(self) -> None:
        """Starts every group that may run under the present policy version."""
        last = (self._policy_version + 1) * self._settings.num_groups + self._settings.ahead
        count = last - self._next_group
        if count <= 0:
            return
        for _ in range(count):
            group_id = self._next_group
            self._cursors[group_id] = self._source.state_dict()
            (task,) = self._source.next_tasks(1)
            run = self._rollouter.run_group(task, group_id, group_id // self._settings.num_groups, self._generate)
            self._in_flight[group_id] = start(run)
            self._next_group += 1

    async def _collect(self, step: int) -> StepGroups:
        first = step * self._settings.num_groups
        ids = range(first, first + self._settings.num_groups)
        try:
            await self._admit()
            # gather fails with the first group that fails, whichever it is
            groups = await asyncio.gather(*(self._in_flight[i] for i in ids))
            found = await self._replace_dropped(list(groups), step)
        except BaseException:
            await self._cancel_all()
            raise
        for i in ids:
            del self._in_flight[i], self._cursors[i]
        _check_failures(found.sampled, step, self._settings.max_failed_fraction)
        return found

    async def _replace_dropped(self, groups: list[TrajectoryGroup], step: int) -> StepGroups:
        """Asks for other tasks in place of the groups that the filter drops; what cannot be replaced stays dropped.

        Replacements have negative ids, unique in the run, so that their samples are reproducible as well.
        """
        if self._keep is None:
            return StepGroups(groups, [])
        limit, wanted, replaced = self._settings.max_replacements, len(groups), 0
        found = StepGroups([], [])
        while True:
            for group in groups:
                (found.kept if self._keep(group) else found.dropped).append(group)
            missing = min(wanted - len(found.kept), limit - replaced)
            if missing <= 0:
                return found
            tasks = self._source.next_tasks(missing)
            ids = [-(step * limit + replaced + i + 1) for i in range(len(tasks))]
            runs = [self._rollouter.run_group(t, i, step, self._generate) for t, i in zip(tasks, ids, strict=True)]
            groups = await asyncio.gather(*runs)
            replaced += len(tasks)

    async def _cancel_all(self) -> None:
        for task in self._in_flight.values():
            task.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)
        self._in_flight.clear()
        self._cursors.clear()


def _check_failures(groups: Sequence[TrajectoryGroup], step: int, max_failed_fraction: float) -> None:
    """Raises RewardError when more of the attempts failed, with the most frequent causes."""
    trajectories = [t for g in groups for t in g.attempts]
    causes = Counter(t.failure for t in trajectories if t.failure)
    failed = sum(causes.values())
    if failed <= max_failed_fraction * len(trajectories):
        return
    first = "\n".join(f"  {count} x {cause}" for cause, count in causes.most_common(3))
    raise RewardError(
        f"step {step}: {failed} of {len(trajectories)} attempts failed, more than max_failed_fraction "
        f"({max_failed_fraction:g}) allows. The most frequent causes:\n{first}"
    )
