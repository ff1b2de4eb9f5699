"""Choice of the engine for each request, and when it gets it: at once, or after a wait in line."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeVar

from roll.distributed.executor.rollout.answers import Continuation
from roll.errors import RollError
from roll.types.rollout import GenerationRequest

# Which of several engines gets a request: the least loaded one, but for what another has cached already.

Key = TypeVar("Key")
_MAX_PLACES = 16_384
_SPARE_ANSWERS, _SPARE_FACTOR = 8, 1.5  # so much more than the least loaded may an engine have to be preferred


class EngineRouter:
    """Knows how many answers each usable engine owes, where the last request of a session went, and where a prompt
    went: what is cached there is shared. An engine that is gone, or much more loaded than the others, is not waited
    for. While some are away the others get no more than `room` answers each, if that is given.

    Example: loads {0: 12, 1: 6}; a session that was on 0 stays there (12 <= 1.5 * 6 + 8), a new prompt goes to 1."""

    def __init__(self, num_engines: int, room: int | None = None):
        self._room = room
        self._loads = dict.fromkeys(range(num_engines), 0)  # of the usable ones
        self._closed: dict[int, int] = {}  # loads of those that are away
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._prompts: OrderedDict[bytes, int] = OrderedDict()

    @property
    def has_engines(self) -> bool:
        """Usable ones, or such as are away."""
        return bool(self._loads or self._closed)

    @property
    def loads(self) -> dict[int, int]:
        return dict(self._loads)

    def load(self, rank: int) -> int:
        """The answers that an engine owes; 0 for one that is gone."""
        return self._loads.get(rank, self._closed.get(rank, 0))

    def add(self, rank: int, num_answers: int) -> None:
        """More, or fewer, are asked of a usable engine, or of one that is away."""
        (self._closed if rank in self._closed else self._loads)[rank] += num_answers

    def close(self, rank: int) -> None:
        """The engine is away, and takes no requests until `come`; it may hand over what it owes."""
        if rank in self._loads:
            self._closed[rank] = self._loads.pop(rank)

    def leave(self, rank: int) -> None:
        """The engine is gone, with what it owed."""
        self._loads.pop(rank, None)
        self._closed.pop(rank, None)

    def reopen(self, rank: int) -> None:
        """The engine is back. One that was gone owes nothing."""
        self._loads[rank] = self._closed.pop(rank, 0)

    def choose(self, request: GenerationRequest) -> int | None:
        """The rank for this request. None if no engine is usable, or none has room."""
        if not self._loads:
            return None
        emptiest = min(self._loads, key=lambda rank: (self._loads[rank], rank))
        most = self._room if self._closed and self._room is not None else math.inf
        if self._loads[emptiest] >= most:
            return None
        if not any(self._loads.values()):
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


def _remember(places: OrderedDict[Key, int], key: Key, rank: int) -> None:
    places[key] = rank
    places.move_to_end(key)
    if len(places) > _MAX_PLACES:
        places.popitem(last=False)


@dataclass
class PendingRequest:
    """A request whole, or what is missing of one. `rank`: of the engine that has it, or has room for it."""

    request: GenerationRequest
    to: Continuation
    rank: int | None = None
    is_cut: bool = False  # nobody needs more of it
    parts: Sequence[PendingRequest] = ()  # of one request that several engines go on with: this one and the others
    num_open: int = field(init=False)  # answers that the engine owes
    done: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.num_open = self.request.num_samples
        self.done = asyncio.get_running_loop().create_future()

    def count(self, num_answers: int) -> None:
        self.num_open -= num_answers
        if not self.num_open:
            self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: RollError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass
class Replica:
    """One engine, as a client sees it. All fields belong to the event loop."""

    rank: int
    outbox: list[GenerationRequest] = field(default_factory=list)
    waiting: dict[str, PendingRequest] = field(default_factory=dict)
    exchange: asyncio.Task[None] | None = None
    failure: RollError | None = None
    is_given_up: bool = False  # nobody brings it back
    is_away: bool = False  # from its devices, and hands over what it is asked


@dataclass(order=True)
class _Waiting:
    order: int
    arrival: int
    request: PendingRequest = field(compare=False)
    called: asyncio.Future[int | None] = field(compare=False)


class EngineChoice:
    """The engines of a client, and the line of requests for which none has room (`EngineRouter`): the smallest order
    first, then as they came. With `waits`, a request also waits where all engines are dead, until all are given up."""

    def __init__(self, num_engines: int, room: int | None, waits: bool):
        self.router = EngineRouter(num_engines, room)
        self.replicas = [Replica(rank) for rank in range(num_engines)]
        self._waits = waits
        self._line: list[_Waiting] = []  # a heap
        self._num_arrived = 0

    async def choose(self, call: PendingRequest) -> Replica | None:
        """The engine, of whose load it is part now; None if it was cut before. Raises the failure where none is
        left."""
        rank = None if self._has_line() else self._reserve(call)
        while not call.is_cut:
            if rank is None:
                rank = await self._wait(call)
            else:
                replica = self.replicas[rank]
                if replica.failure is None and not replica.is_away:
                    return replica
                self.give_back(call)  # it went between the call and now
            if call.rank is None:
                rank = self._reserve(call)
        self.give_back(call)
        return None

    def give_back(self, call: PendingRequest) -> None:
        """Its place at an engine, if it has one and is not asked after all."""
        rank, call.rank = call.rank, None
        if rank is not None and self.replicas[rank].failure is None:
            self.has_less_load(rank, call.num_open)

    def has_less_load(self, rank: int, num_answers: int) -> None:
        self.router.add(rank, -num_answers)
        self._call()

    def close(self, replica: Replica) -> None:
        replica.is_away = True
        self.router.close(replica.rank)

    def reopen(self, replica: Replica) -> None:
        self.router.reopen(replica.rank)
        self._call()

    def leave(self, replica: Replica) -> None:
        self.router.leave(replica.rank)
        self.retry_choice()

    def retry_choice(self) -> None:
        """Wake all requests in line to choose again."""
        waiting, self._line = sorted(self._line), []
        for each in waiting:
            if not each.called.done():
                each.called.set_result(None)

    def _raise_if_none_comes(self) -> None:
        may_come = any(replica.is_away for replica in self.replicas)
        if not may_come and (not self._waits or all(replica.is_given_up for replica in self.replicas)):
            failure = self.replicas[0].failure
            assert failure is not None
            raise failure

    def _reserve(self, call: PendingRequest) -> int | None:
        call.rank = self.router.choose(call.request)
        if call.rank is not None:
            self.router.add(call.rank, call.num_open)
        return call.rank

    async def _wait(self, call: PendingRequest) -> int | None:
        """The rank that has room for it; None after `retry_choice`."""
        self._raise_if_none_comes()
        called: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._num_arrived += 1
        heappush(self._line, _Waiting(call.request.order, self._num_arrived, call, called))
        try:
            return await called
        except asyncio.CancelledError:
            self.give_back(call)
            raise

    def _has_line(self) -> bool:
        while self._line and self._line[0].called.done():
            heappop(self._line)  # it was cancelled
        return bool(self._line)

    def _call(self) -> None:
        while self._has_line() and (rank := self._reserve(self._line[0].request)) is not None:
            heappop(self._line).called.set_result(rank)
