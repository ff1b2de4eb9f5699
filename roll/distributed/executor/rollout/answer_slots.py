"""Slots of an engine: how many answers it works on at once; further ones wait in line."""

import asyncio
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

SAMPLING, HELD, AWAY = "sampling", "held", "away"


class QueueEntry(NamedTuple):
    """A position in the queue: by order, then by arrival."""

    order: int
    arrival: int


class _Turn(NamedTuple):
    place: QueueEntry
    name: str
    most: int
    granted: asyncio.Future[int]


class AnswerSlots:
    """The first in line gets what is free, as many slots as it wants and at least one. The smallest order is served
    first, equal ones as they come. What is given back in one turn of the event loop is handed out together."""

    def __init__(self, count: int | None = None):
        """None: no limit."""
        self._count = count
        self._free = count or 0
        self._line: list[_Turn] = []  # a heap
        self._num_arrived = 0
        self._grant_is_due = False

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def place(self, order: int = 0) -> QueueEntry:
        """A new position behind all of this order and of smaller ones."""
        self._num_arrived += 1
        return QueueEntry(order, self._num_arrived)

    async def take(self, name: str, most: int, place: QueueEntry) -> int:
        """How many slots there are for this request, from 1 to `most`; 0 if `leave` came first."""
        if self._count is None:
            return most
        if not self._line and self._free:
            return self._hand_out(most)
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heappush(self._line, _Turn(place, name, most, granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(granted.result())
            raise

    def give_back(self, num_slots: int) -> None:
        if self._count is None or not num_slots:
            return
        self._free += num_slots
        if self._line and not self._grant_is_due:
            self._grant_is_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def leave(self, names: Iterable[str] | None = None) -> None:
        """The requests under these names (None: all), where they wait, wait no longer."""
        gone = None if names is None else set(names)
        staying: list[_Turn] = []
        for turn in self._line:
            if gone is not None and turn.name not in gone:
                staying.append(turn)
            elif not turn.granted.done():
                turn.granted.set_result(0)
        heapify(staying)
        self._line = staying

    def _grant(self) -> None:
        self._grant_is_due = False
        while self._line and self._free:
            turn = heappop(self._line)
            if not turn.granted.done():  # else cancelled meanwhile
                turn.granted.set_result(self._hand_out(turn.most))

    def _hand_out(self, most: int) -> int:
        count = min(most, self._free)
        self._free -= count
        return count
