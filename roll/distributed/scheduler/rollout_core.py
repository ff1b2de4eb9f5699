"""Keeps numbered groups of trajectories in flight and hands them to the steps that train on them.

One set of rules, by numbers: which group may start (`RolloutBounds.capacity`), which a step takes (`can_take`), and
when room comes back (when the weights that a group trained are published, so that nothing is born stale). With
max_staleness 0 rollout and training alternate, and what a step gets depends on data and seed alone.

Only asyncio, and no clock but the loop's: it runs on a virtual one unchanged.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any

from roll.configs.plan.batch_plan import RolloutBounds
from roll.types.rollout import TrajectoryGroup
from roll.utils.background import start

# The groups that were started and that no step took, in the order of their numbers.


@dataclass
class ActiveGroup:
    """`deadline`: the last step that may train on it. `run` is None before it was started (again) in a resumed run;
    `result` until it is finished. `is_kept`: by the filter."""

    number: int
    deadline: int
    run: asyncio.Task[TrajectoryGroup] | None = None
    result: TrajectoryGroup | None = None
    is_kept: bool = True


class ActiveGroups:
    """Groups that are sampled or finished, in the (rising) order of their numbers, and their counts by deadline."""

    def __init__(self) -> None:
        self.by_deadline: Counter[int] = Counter()  # the finished ones included
        self.finished_by_deadline: Counter[int] = Counter()
        self._groups: dict[int, ActiveGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ActiveGroup]:
        return iter(self._groups.values())

    @property
    def num_finished(self) -> int:
        return self.finished_by_deadline.total()

    def is_run_of(self, number: int, run: asyncio.Task[TrajectoryGroup]) -> bool:
        group = self._groups.get(number)
        return group is not None and group.run is run

    def add(self, group: ActiveGroup) -> None:
        self._groups[group.number] = group
        self.by_deadline[group.deadline] += 1
        self.finished_by_deadline[group.deadline] += group.result is not None

    def finish(self, number: int, result: TrajectoryGroup, is_kept: bool) -> None:
        group = self._groups[number]
        group.result, group.is_kept = result, is_kept
        self.finished_by_deadline[group.deadline] += 1

    def front(self, most: int) -> list[ActiveGroup]:
        """The oldest groups, up to the first that is not finished, and at most so many."""
        return list(islice(takewhile(lambda group: group.result is not None, self), most))

    def oldest_finished(self, count: int) -> list[ActiveGroup]:
        """Takes them out."""
        taken = list(islice((group for group in self if group.result is not None), count))
        for group in taken:
            self.remove(group.number)
        return taken

    def remove(self, number: int) -> None:
        group = self._groups.pop(number)
        self.by_deadline[group.deadline] -= 1
        self.finished_by_deadline[group.deadline] -= group.result is not None
        if not self.by_deadline[group.deadline]:
            del self.by_deadline[group.deadline], self.finished_by_deadline[group.deadline]


# Arithmetic of when a group of trajectories may start, and when a step may take its groups; without a clock.
#
# Groups are numbered in the order of the data. A group that starts under policy version v may be trained on in step v +
# max_staleness at the latest: its deadline. A step takes the oldest of the finished groups as soon as those that it
# leaves can all meet theirs. Steps and versions count alike: version v is what v steps have trained.


def can_take(finished: Mapping[int, int], active: Mapping[int, int], step: int, num_groups: int) -> bool:
    """True if `step` may take the oldest `num_groups` finished groups: in the order of their numbers, the i-th of the
    groups left (from 1) then meets its deadline, since i <= (deadline - step) * num_groups. `finished` and `active`
    (the finished ones included) count groups by deadline; an older group never has a later one."""
    missing, remaining = num_groups, 0
    for deadline in sorted(active):
        taken = min(missing, finished.get(deadline, 0))
        missing -= taken
        remaining += active[deadline] - taken
        if remaining > (deadline - step) * num_groups:
            return False
    return missing == 0


def resumed_deadlines(admitted_at: Sequence[int], step: int, bounds: RolloutBounds) -> list[int]:
    """The deadlines of groups, oldest first, that were admitted at these versions, where a run goes on with `step`. One
    that the bounds give and that cannot be met is put off until it can; a finished group is too old then
    (`is_too_old`).

    Example: 2 groups a step that may be 1 step old, going on with step 5: three groups of version 4 have 5, 5 and 6."""
    return [max(version + bounds.max_staleness, step + i // bounds.num_groups) for i, version in enumerate(admitted_at)]


def is_too_old(admitted_at: int, deadline: int, bounds: RolloutBounds) -> bool:
    """True if tokens of that version may be trained on only before the deadline."""
    return admitted_at + bounds.max_staleness < deadline


Keep = Callable[[TrajectoryGroup], bool]
Play = Callable[[int], Coroutine[Any, Any, TrajectoryGroup]]


@dataclass(frozen=True)
class GroupBacklog:
    """How many groups a step left: that go on `running`, that are `finished` and wait, that were `cancelled` (results
    are thrown away), and that were `deferred`: they start again under their numbers. Of those given up for what they
    were doing: the `results` that were there, and tokens and wholeness of each other answer (`cut`)."""

    running: int = 0
    finished: int = 0
    cancelled: int = 0
    deferred: int = 0
    results: tuple[TrajectoryGroup, ...] = ()
    cut: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class StepGroups:
    """The groups of a step: those to train on, and those that the filter dropped, in the order of their numbers.
    `backlog` is None where a step never leaves any."""

    groups: list[TrajectoryGroup]
    dropped: list[TrajectoryGroup]
    backlog: GroupBacklog | None = None

    @property
    def sampled(self) -> list[TrajectoryGroup]:
        return self.groups + self.dropped


@dataclass(frozen=True)
class SavedGroup:
    """A group that was started and that no step took. No token of it is older than version `admitted_at`."""

    number: int
    admitted_at: int
    result: TrajectoryGroup | None = None
    is_kept: bool = True


@dataclass(frozen=True)
class CoreState:
    """`next`: the first number that was never started. `active`: those that were, and that no step took. `deferred`:
    numbers that are to be started again. `replaced`: results that the filter dropped since the last step."""

    next: int
    active: tuple[SavedGroup, ...] = ()
    deferred: tuple[int, ...] = ()
    replaced: tuple[tuple[int, TrajectoryGroup], ...] = ()

    @property
    def numbers(self) -> set[int]:
        """All whose task may be asked for again."""
        return {group.number for group in self.active} | set(self.deferred) | {number for number, _ in self.replaced}

    @property
    def oldest(self) -> int:
        return min(self.numbers, default=self.next)


class RolloutCore:
    """The groups between the data and the step. Everything happens on the event loop on which `collect` is awaited."""

    def __init__(
        self,
        play: Play,
        bounds: RolloutBounds,
        keep: Keep | None = None,
        max_replacements: int = 0,
        num_steps: int | None = None,
        max_running: int | None = None,
    ):
        """`play` makes the group of a number; it is called in their order. `keep` says which groups are worth training
        on: of those that are not, `max_replacements` between two steps give their room to the next number at once, the
        others stand in their step without being trained on. `num_steps`: of the whole run; nothing is started that no
        step would take. `max_running`: groups at once; the others start, and count their age, as some finish."""
        self._play = play
        self._bounds = bounds if keep is not None else replace(bounds, additional=0)
        self._keep = keep
        self._max_replacements, self._num_steps, self._max_running = max_replacements, num_steps, max_running
        self._next = 0
        self._version = 0
        self._step = 0  # the next one to take its groups
        self._num_taken = 0  # by steps whose weights are not published
        self._groups = ActiveGroups()
        self._taking: list[ActiveGroup] = []  # by the step that is about to have them
        self._unstarted: deque[ActiveGroup] = deque()  # of these: they wait to be started again in a resumed run
        self._deferred: list[int] = []  # a heap of numbers
        self._plays_deferred = False  # in this step, and nothing else
        self._num_dropped = 0  # since the last step, where groups count in their order
        self._replaced: list[tuple[int, TrajectoryGroup]] = []  # dropped since the last step, others in their place
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_running(self) -> int:
        return len(self._groups) - self._groups.num_finished - len(self._unstarted)

    @property
    def _is_crowded(self) -> bool:
        return self._max_running is not None and self.num_running >= self._max_running

    def state(self) -> CoreState:
        """Return the state from which a resumed run continues: every number that no step took."""
        staleness = self._bounds.max_staleness
        groups = [
            SavedGroup(g.number, g.deadline - staleness, g.result, g.is_kept) for g in (*self._taking, *self._groups)
        ]
        return CoreState(self._next, tuple(groups), tuple(sorted(self._deferred)), tuple(self._replaced))

    def restore(self, state: CoreState, step: int) -> None:
        """Goes on where `step` steps are done, it may be under other bounds: the oldest groups have room, a finished
        one that is not too old keeps its result, and everything else is sampled (again) under its number. Called once,
        before the first `collect`; what is to run starts with it, or as soon as weights are published."""
        self._step = self._version = step
        self._next, self._replaced, self._num_dropped = state.next, list(state.replaced), len(state.replaced)
        deferred = (SavedGroup(number, step) for number in state.deferred)
        saved = sorted((*state.active, *deferred), key=lambda group: group.number)
        room = 0 if self._bounds.alternates else max(0, self._room())
        deadlines = resumed_deadlines([group.admitted_at for group in saved[:room]], step, self._bounds)
        for group, deadline in zip(saved, deadlines, strict=False):
            usable = group.result is not None and not is_too_old(group.admitted_at, deadline, self._bounds)
            result, is_kept = (group.result, group.is_kept) if usable else (None, True)
            active = ActiveGroup(group.number, deadline, None, result, is_kept)
            self._groups.add(active)
            if not usable:
                self._unstarted.append(active)
        self._deferred = [group.number for group in saved[room:]]  # a heap, since it is sorted

    async def collect(self, step: int) -> StepGroups:
        """The groups of this step, by number. The first group that fails, of whichever step, ends it."""
        self._step = step
        num_groups, is_last = self._bounds.num_groups, self._num_steps is not None and step == self._num_steps - 1
        defers = self._bounds.unfinished == "defer"
        self._plays_deferred = defers and (len(self._deferred) >= num_groups or is_last)
        self._admit()
        await self._until_ready()
        self._taking = self._groups.oldest_finished(num_groups)
        given_up = await self._give_up() if self._bounds.alternates else []
        taken, self._taking = self._taking, []
        self._step, self._num_taken = step + 1, self._num_taken + num_groups
        used = [_result(group) for group in taken if group.is_kept]
        dropped = [*self._replaced, *((g.number, _result(g)) for g in taken if not g.is_kept)]
        self._replaced, self._num_dropped = [], 0
        groups_left = self._backlog(given_up) if self._bounds.leaves_groups else None
        return StepGroups(used, [group for _, group in sorted(dropped, key=lambda entry: entry[0])], groups_left)

    def published(self, version: int) -> None:
        """The engines now sample from this version: what was trained into it gives its room back. Where groups may be
        ahead of their step they start now, else with the step that asks for them."""
        self._version, self._num_taken = version, 0
        if self._bounds.ahead and not self._bounds.alternates:
            self._admit()

    async def cancel(self) -> None:
        """Ends all groups. `state` still has them."""
        await _cancel(self._groups)

    def _admit(self) -> None:
        while self._unstarted and not self._is_crowded:
            self._start(self._unstarted.popleft())
        while len(self._groups) < self._room() and not self._is_crowded:
            again = self._deferred and (self._plays_deferred or self._bounds.unfinished != "defer")
            number = heappop(self._deferred) if again else self._next
            self._next = max(self._next, number + 1)
            group = ActiveGroup(number, self._version + self._bounds.max_staleness)
            self._groups.add(group)
            self._start(group)

    def _room(self) -> int:
        """How many groups may be active."""
        bounds = self._bounds
        needed = None if self._num_steps is None else (self._num_steps - self._step) * bounds.num_groups
        if bounds.is_in_order:  # those that are dropped stay until their turn comes
            more = bounds.additional + max(0, min(self._num_dropped, self._max_replacements) - len(self._replaced))
            return (bounds.num_groups if needed is None else min(bounds.num_groups, needed)) + more
        if not bounds.alternates:
            room = bounds.capacity - self._num_taken
            return room if needed is None else min(room, needed)
        if self._plays_deferred:
            return bounds.num_groups
        room = bounds.num_groups + bounds.ahead
        if bounds.unfinished == "drop" or needed is None:
            return room
        return min(room, needed - len(self._deferred))

    def _start(self, group: ActiveGroup) -> None:
        number = group.number
        group.run = start(self._play(number))
        group.run.add_done_callback(lambda ended: self._ended(number, ended))

    def _ended(self, number: int, run: asyncio.Task[TrajectoryGroup]) -> None:
        if run.cancelled() or not self._groups.is_run_of(number, run):
            return
        try:
            self._finish(number, run.result())
        except BaseException as error:  # of the group, or of the filter that looked at it
            self._failure = self._failure or error
        self._wake()

    def _finish(self, number: int, played: TrajectoryGroup) -> None:
        is_kept = self._keep is None or self._keep(played)
        if is_kept or (not self._bounds.is_in_order and len(self._replaced) >= self._max_replacements):
            self._groups.finish(number, played, is_kept)
        elif self._bounds.is_in_order:
            self._groups.finish(number, played, is_kept)
            self._num_dropped += 1
        else:
            self._groups.remove(number)
            self._replaced.append((number, played))
        self._admit()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _until_ready(self) -> None:
        """Returns when the step can take its groups, and has waited long enough for older ones."""
        loop, bounds = asyncio.get_running_loop(), self._bounds
        patience: asyncio.TimerHandle | None = None
        is_over = False

        def end_patience() -> None:
            nonlocal is_over
            is_over = True
            self._wake()

        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                if bounds.is_in_order:
                    self._is_front_full()  # those that were dropped make room before the step looks
                if self._can_take():
                    if is_over or not bounds.grace_s or self._is_front_full():
                        return
                    patience = patience or loop.call_later(bounds.grace_s, end_patience)
                self._waiter = loop.create_future()
                await self._waiter
        finally:
            if patience is not None:
                patience.cancel()

    def _is_front_full(self) -> bool:
        """True if the oldest groups of all that are active are finished, as many as the step takes. Where groups count
        in their order, those that were dropped give their room to the next ones as they come to the front."""
        bounds, num_in_front = self._bounds, 0
        for group in self._groups.front(bounds.num_groups + self._max_replacements):
            if num_in_front == bounds.num_groups:
                break
            if bounds.is_in_order and not group.is_kept and len(self._replaced) < self._max_replacements:
                self._groups.remove(group.number)
                self._replaced.append((group.number, _result(group)))
            else:
                num_in_front += 1
        return num_in_front == bounds.num_groups

    def _can_take(self) -> bool:
        bounds, groups = self._bounds, self._groups
        if bounds.alternates:
            ready = len(groups.front(bounds.num_groups)) if bounds.is_in_order else groups.num_finished
            return ready >= bounds.num_groups
        if groups.num_finished < bounds.num_groups:
            return False
        return can_take(groups.finished_by_deadline, groups.by_deadline, self._step, bounds.num_groups)

    async def _give_up(self) -> list[ActiveGroup]:
        """Ends what a step left, and returns it."""
        remaining, self._groups = list(self._groups), ActiveGroups()
        if self._bounds.unfinished != "drop":
            for group in remaining:
                heappush(self._deferred, group.number)
        await _cancel(remaining)
        return remaining

    def _backlog(self, given_up: Sequence[ActiveGroup]) -> GroupBacklog:
        results = () if self._bounds.is_in_order else tuple(g.result for g in given_up if g.result is not None)
        return GroupBacklog(self.num_running, self._groups.num_finished, len(given_up), len(self._deferred), results)


def _result(group: ActiveGroup) -> TrajectoryGroup:
    assert group.result is not None
    return group.result


async def _cancel(groups: Iterable[ActiveGroup]) -> None:
    runs = [group.run for group in groups if group.run is not None]
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
