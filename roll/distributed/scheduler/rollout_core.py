"""Keeps numbered groups of trajectories in flight and hands them to the steps that train on them.

One set of rules, by numbers: which group may start (`RolloutBounds.capacity`), which a step takes (`can_take`), and
when room comes back (when the weights that a group trained are published, so that nothing is born stale). With
max_staleness 0 rollout and training alternate, and what a step gets depends on data and seed alone.

Only asyncio, and no clock: it runs on a virtual one unchanged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from roll.configs.plan.rollout_bounds import RolloutBounds
from roll.distributed.scheduler.admission import can_take
from roll.types.rollout import TrajectoryGroup
from roll.utils.background import start

Keep = Callable[[TrajectoryGroup], bool]
Play = Callable[[int], Coroutine[Any, Any, TrajectoryGroup]]


@dataclass(frozen=True)
class StepGroups:
    """The groups of a step: those to train on, and those that the filter dropped, in the order of their numbers."""

    kept: list[TrajectoryGroup]
    dropped: list[TrajectoryGroup]

    @property
    def sampled(self) -> list[TrajectoryGroup]:
        return self.kept + self.dropped


@dataclass(frozen=True)
class CoreState:
    """`next`: the first number that was never started. `active`: those that were, and that no step took, with their
    deadlines."""

    next: int
    active: tuple[tuple[int, int], ...] = ()

    @property
    def oldest(self) -> int:
        return min([number for number, _ in self.active], default=self.next)


@dataclass
class _Active:
    """A group that was started and not taken. `deadline`: the last step that may train on it."""

    deadline: int
    run: asyncio.Task[TrajectoryGroup]
    is_kept: bool = True


class RolloutCore:
    """The groups between the data and the step. Everything happens on the event loop on which `collect` is awaited."""

    def __init__(
        self,
        play: Play,
        bounds: RolloutBounds,
        keep: Keep | None = None,
        max_replacements: int = 0,
        num_steps: int | None = None,
    ):
        """`play` makes the group of a number; it is called in their order. `keep` says which groups are worth training
        on: of those that are not, `max_replacements` between two steps give their room to the next number at once, the
        others stand in their step without being trained on. `num_steps`: of the whole run; nothing is started that no
        step would take."""
        self._play = play
        self._bounds = bounds
        self._keep = keep
        self._max_replacements, self._num_steps = max_replacements, num_steps
        self._next = 0
        self._version = 0
        self._step = 0  # the next one to take its groups
        self._num_taken = 0  # by steps whose weights are not published
        self._active: dict[int, _Active] = {}
        self._finished: list[int] = []  # a heap of numbers
        self._num_active: Counter[int] = Counter()  # by deadline, the finished ones included
        self._num_finished: Counter[int] = Counter()  # by deadline
        self._replaced: list[TrajectoryGroup] = []  # dropped since the last step, with others in their place
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_running(self) -> int:
        return len(self._active) - len(self._finished)

    def state(self) -> CoreState:
        """What a resumed run has to play (again): every number that no step took."""
        return CoreState(self._next, tuple(sorted((n, group.deadline) for n, group in self._active.items())))

    def restore(self, state: CoreState, step: int) -> None:
        """Goes on where `step` steps are done. Called once, on the loop, before the first `collect`."""
        self._step = self._version = step
        self._next = state.next
        for number, deadline in state.active:
            self._start(number, deadline)

    async def collect(self, step: int) -> StepGroups:
        """The groups of this step, by number. The first group that fails, of whichever step, ends it with what it
        raised."""
        self._step = step
        self._admit()
        while not self._can_take():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken = [self._take(heappop(self._finished)) for _ in range(self._bounds.num_groups)]
        self._step, self._num_taken = step + 1, self._num_taken + len(taken)
        kept = [group.run.result() for group in taken if group.is_kept]
        dropped = [*self._replaced, *(group.run.result() for group in taken if not group.is_kept)]
        self._replaced = []
        return StepGroups(kept, sorted(dropped, key=lambda group: group.group_id))

    def published(self, version: int) -> None:
        """The engines now sample from this version: what was trained into it gives its room back. Where groups may be
        ahead of their step they start now, else with the step that asks for them."""
        self._version, self._num_taken = version, 0
        if self._bounds.ahead:
            self._admit()

    async def cancel(self) -> None:
        """Ends all groups. `state` still has them."""
        runs = [group.run for group in self._active.values()]
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    def _admit(self) -> None:
        room = self._bounds.capacity - self._num_taken
        if self._num_steps is not None:
            room = min(room, (self._num_steps - self._step) * self._bounds.num_groups)
        while len(self._active) < room:
            self._start(self._next, self._version + self._bounds.max_staleness)
            self._next += 1

    def _start(self, number: int, deadline: int) -> None:
        run = start(self._play(number))
        self._active[number] = _Active(deadline, run)
        self._num_active[deadline] += 1
        run.add_done_callback(lambda ended: self._ended(number, ended))

    def _ended(self, number: int, run: asyncio.Task[TrajectoryGroup]) -> None:
        if run.cancelled():
            return
        try:
            self._finish(number, run.result())
        except BaseException as error:  # of the group, or of the filter that looked at it
            self._failure = self._failure or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish(self, number: int, played: TrajectoryGroup) -> None:
        group = self._active[number]
        group.is_kept = self._keep is None or self._keep(played)
        self._num_finished[group.deadline] += 1
        if group.is_kept or len(self._replaced) == self._max_replacements:
            heappush(self._finished, number)
        else:
            self._take(number)
            self._replaced.append(played)
            self._admit()

    def _can_take(self) -> bool:
        if self._failure is not None:
            raise self._failure
        bounds = self._bounds
        return len(self._finished) >= bounds.num_groups and can_take(
            self._num_finished, self._num_active, self._step, bounds.num_groups
        )

    def _take(self, number: int) -> _Active:
        """Takes out a finished group."""
        group = self._active.pop(number)
        for counts in (self._num_active, self._num_finished):
            counts[group.deadline] -= 1
            if not counts[group.deadline]:
                del counts[group.deadline]
        return group
