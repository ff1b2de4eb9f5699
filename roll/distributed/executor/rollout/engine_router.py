"""Which of several engines gets a request: the least loaded one, but for what another has cached already."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TypeVar

from roll.types.rollout import GenerationRequest

Key = TypeVar("Key")
_MAX_PLACES = 16_384
_SPARE_ANSWERS, _SPARE_FACTOR = 8, 1.5  # so much more than the least loaded may an engine have to be preferred
_STALE_FACTOR = 8  # entries of the heap per engine, beyond which it is built anew


class EngineRouter:
    """Knows how many answers each usable engine owes, where the last request of a session went (the next turn of an
    episode finds its beginning cached there), and where a prompt went (other attempts at it share its cache). An engine
    that is gone, or much more loaded than the others, is not waited for: then the session moves.

    While some engines are away the others get no more than `room` answers each, if that is given: what is more waits
    outside for the first that has room, rather than in the line of one that is full.

    What a request costs does not grow with the engines.

    Example: loads {0: 12, 1: 6}; a session that was on 0 stays there (12 <= 1.5 * 6 + 8), a new prompt goes to 1.
    """

    def __init__(self, num_engines: int, room: int | None = None):
        self._room = room
        self._loads = dict.fromkeys(range(num_engines), 0)  # of the usable ones
        self._closed: dict[int, int] = {}  # loads of those that are away
        self._heap = [(0, rank) for rank in self._loads]  # each engine with its load, and with loads that it had
        self._total = 0
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._prompts: OrderedDict[bytes, int] = OrderedDict()

    @property
    def has_engines(self) -> bool:
        """Usable ones, or such as are away."""
        return bool(self._loads or self._closed)

    @property
    def loads(self) -> dict[int, int]:
        """The answers that each usable engine owes, by rank."""
        return dict(self._loads)

    def load(self, rank: int) -> int:
        """The answers that an engine owes; 0 for one that is gone."""
        return self._loads.get(rank, self._closed.get(rank, 0))

    def add(self, rank: int, num_answers: int) -> None:
        """More, or fewer, are asked of a usable engine, or of one that is away."""
        if rank in self._closed:
            self._closed[rank] += num_answers
            return
        load = self._loads[rank] = self._loads[rank] + num_answers
        self._total += num_answers
        heappush(self._heap, (load, rank))
        if len(self._heap) > _STALE_FACTOR * len(self._loads):
            self._heap = [(load, rank) for rank, load in self._loads.items()]
            heapify(self._heap)

    def close(self, rank: int) -> None:
        """The engine is away, and takes no requests until `come`; it may hand over what it owes."""
        if rank in self._loads:
            self._closed[rank] = self._loads.pop(rank)
            self._total -= self._closed[rank]

    def leave(self, rank: int) -> None:
        """The engine is gone, with what it owed."""
        self._total -= self._loads.pop(rank, 0)
        self._closed.pop(rank, None)

    def come(self, rank: int) -> None:
        """The engine is back. One that was gone owes nothing."""
        load = self._loads[rank] = self._closed.pop(rank, 0)
        self._total += load
        heappush(self._heap, (load, rank))

    def choose(self, request: GenerationRequest) -> int | None:
        """The rank for this request. None if no engine is usable, or none has room."""
        if not self._loads:
            return None
        emptiest = self._emptiest()
        most = self._room if self._closed and self._room is not None else math.inf
        if self._loads[emptiest] >= most:
            return None
        if not self._total:
            self._prompts.clear()  # all are answered: the next ones may come after a weight update
        prompt = hashlib.blake2b(request.prompt_ids.tobytes(), digest_size=16).digest()
        known = (self._sessions.get(request.session), self._prompts.get(prompt))
        bearable = min(_SPARE_FACTOR * self._loads[emptiest] + _SPARE_ANSWERS, most - 1)
        preferred = [rank for rank in known if rank is not None and self._loads.get(rank, bearable + 1) <= bearable]
        rank = preferred[0] if preferred else emptiest
        if request.session:
            _remember(self._sessions, request.session, rank)
        _remember(self._prompts, prompt, rank)
        return rank

    def _emptiest(self) -> int:
        while self._loads.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][1]


def _remember(places: OrderedDict[Key, int], key: Key, rank: int) -> None:
    places[key] = rank
    places.move_to_end(key)
    if len(places) > _MAX_PLACES:
        places.popitem(last=False)
