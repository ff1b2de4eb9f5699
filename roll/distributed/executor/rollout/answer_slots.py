"""How many answers an engine works on at once; further requests wait in line."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable


class AnswerSlots:
    """First come, first served. A request for more answers than there are slots takes them all.

    Example: 4 slots; requests for 3, 2 and 1 answers: the first runs, the second waits, and so does the third, until
    the first gives its 3 back.
    """

    def __init__(self, count: int | None = None):
        """None: no limit."""
        self._count = count
        self._free = count or 0
        self._line: OrderedDict[str, tuple[asyncio.Future[bool], int]] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    async def take(self, name: str, num_answers: int) -> bool:
        """True when the slots are there; False if `leave` came first."""
        if self._count is None:
            return True
        needed = min(num_answers, self._count)
        if not self._line and needed <= self._free:
            self._free -= needed
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line[name] = (turn, needed)
        try:
            return await turn
        except asyncio.CancelledError:
            if self._line.pop(name, None) is None and turn.done() and not turn.cancelled() and turn.result():
                self.give_back(num_answers)
            raise

    def give_back(self, num_answers: int) -> None:
        if self._count is None:
            return
        self._free += min(num_answers, self._count)
        while self._line:
            name, (turn, needed) = next(iter(self._line.items()))
            if needed > self._free:
                return
            del self._line[name]
            if not turn.done():
                self._free -= needed
                turn.set_result(True)

    def leave(self, names: Iterable[str] | None = None) -> None:
        """The requests under these names (None: all), where they wait, wait no longer."""
        for name in list(self._line if names is None else names):
            turn, _ = self._line.pop(name, (None, 0))
            if turn is not None and not turn.done():
                turn.set_result(False)
        self.give_back(0)  # they may have stood before one that fits
