"""The groups that were started and that no step took, in the order of their numbers."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from roll.types.rollout import TrajectoryGroup


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
    """Which are finished, and how many of them there are by deadline. Every call costs the same however many groups
    there are, but for the logarithm of a heap. Numbers are added in rising order."""

    def __init__(self) -> None:
        self.by_deadline: Counter[int] = Counter()  # the finished ones included
        self.finished_by_deadline: Counter[int] = Counter()
        self._groups: dict[int, ActiveGroup] = {}
        self._line: deque[int] = deque()  # not known to have everything older finished; some may be gone
        self._front: deque[int] = deque()  # finished, and so is everything older
        self._behind: list[int] = []  # a heap: finished, and something older may still run

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ActiveGroup]:
        return iter(self._groups.values())

    def __getitem__(self, number: int) -> ActiveGroup:
        return self._groups[number]

    @property
    def num_finished(self) -> int:
        return len(self._front) + len(self._behind)

    def is_run_of(self, number: int, run: asyncio.Task[TrajectoryGroup]) -> bool:
        group = self._groups.get(number)
        return group is not None and group.run is run

    def add(self, group: ActiveGroup) -> None:
        self._groups[group.number] = group
        self._line.append(group.number)
        self.by_deadline[group.deadline] += 1
        if group.result is not None:
            self._count_finished(group)

    def finish(self, number: int, result: TrajectoryGroup, is_kept: bool) -> None:
        group = self._groups[number]
        group.result, group.is_kept = result, is_kept
        self._count_finished(group)

    def next_in_order(self) -> ActiveGroup | None:
        """The oldest group that this was not asked for before, if it is finished: from now on it is in front."""
        while self._line and self._line[0] not in self._groups:
            self._line.popleft()
        group = self._groups[self._line[0]] if self._line else None
        if group is None or group.result is None:
            return None
        self._front.append(self._line.popleft())
        heappop(self._behind)  # nothing that is finished and not in front is older
        return group

    @property
    def num_in_front(self) -> int:
        """Number of groups that `next_in_order` would return."""
        return len(self._front)

    def oldest_finished(self, count: int) -> list[ActiveGroup]:
        """Takes them out."""
        numbers = [self._front.popleft() if self._front else heappop(self._behind) for _ in range(count)]
        return [self._leave(number) for number in numbers]

    def remove_last_in_front(self) -> None:
        self._leave(self._front.pop())

    def remove(self, number: int) -> None:
        """One that is not finished."""
        self._discount(self.by_deadline, self._groups.pop(number).deadline)

    def _count_finished(self, group: ActiveGroup) -> None:
        heappush(self._behind, group.number)
        self.finished_by_deadline[group.deadline] += 1

    def _leave(self, number: int) -> ActiveGroup:
        group = self._groups.pop(number)
        for counts in (self.by_deadline, self.finished_by_deadline):
            self._discount(counts, group.deadline)
        return group

    @staticmethod
    def _discount(counts: Counter[int], deadline: int) -> None:
        counts[deadline] -= 1
        if not counts[deadline]:
            del counts[deadline]
