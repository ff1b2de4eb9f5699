"""What a client asks of engines, and which engine gets it when: at once, or after a wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from roll.distributed.executor.rollout.answers import Continuation
from roll.distributed.executor.rollout.engine_router import EngineRouter
from roll.errors import RollError
from roll.types.rollout import Generation, GenerationRequest


@dataclass
class Asked:
    """A request whole, or what is missing of one. `rank`: of the engine that has it, or has room for it."""

    request: GenerationRequest
    to: Continuation
    rank: int | None = None
    is_cut: bool = False  # nobody needs more of it
    parts: Sequence[Asked] = ()  # of one request that several engines go on with: this one and the others
    num_open: int = field(init=False)  # answers that the engine owes
    done: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.num_open = self.request.num_samples
        self.done = asyncio.get_running_loop().create_future()

    def comes(self, answers: Mapping[int, Generation]) -> None:
        self.num_open -= len(answers)
        for number, answer in answers.items():
            self.to.comes(number, answer)
        if not self.num_open:
            self.ends()

    def ends(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fails(self, error: RollError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass
class Replica:
    """One engine, as a client sees it. All fields belong to the event loop."""

    rank: int
    outbox: list[GenerationRequest] = field(default_factory=list)
    waiting: dict[str, Asked] = field(default_factory=dict)
    exchange: asyncio.Task[None] | None = None
    failure: RollError | None = None
    is_given_up: bool = False  # nobody brings it back
    is_away: bool = False  # from its devices, and hands over what it is asked


@dataclass(order=True)
class _Waiting:
    order: int
    arrival: int
    asked: Asked = field(compare=False)
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

    async def choose(self, asked: Asked) -> Replica | None:
        """The engine, of whose load it is part from here on. None if it was cut before there was one. Raises the
        failure where none is left."""
        rank = None if self._has_line() else self._reserve(asked)
        while not asked.is_cut:
            if rank is None:
                rank = await self._wait(asked)
            else:
                replica = self.replicas[rank]
                if replica.failure is None and not replica.is_away:
                    return replica
                self.give_back(asked)  # it went between the call and now
            if asked.rank is None:
                rank = self._reserve(asked)
        self.give_back(asked)
        return None

    def give_back(self, asked: Asked) -> None:
        """Its place at an engine, if it has one and is not asked after all."""
        rank, asked.rank = asked.rank, None
        if rank is not None and self.replicas[rank].failure is None:
            self.owes_less(rank, asked.num_open)

    def owes_less(self, rank: int, num_answers: int) -> None:
        self.router.add(rank, -num_answers)
        self._call()

    def close(self, replica: Replica) -> None:
        """It is away."""
        replica.is_away = True
        self.router.close(replica.rank)

    def come(self, replica: Replica) -> None:
        """It is back."""
        self.router.come(replica.rank)
        self._call()

    def leave(self, replica: Replica) -> None:
        """It is gone."""
        self.router.leave(replica.rank)
        self.look_again()

    def look_again(self) -> None:
        """What those in line wait for may never come, or be there."""
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

    def _reserve(self, asked: Asked) -> int | None:
        asked.rank = self.router.choose(asked.request)
        if asked.rank is not None:
            self.router.add(asked.rank, asked.num_open)
        return asked.rank

    async def _wait(self, asked: Asked) -> int | None:
        """The rank that has room for it; None after `look_again`."""
        self._raise_if_none_comes()
        called: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._num_arrived += 1
        heappush(self._line, _Waiting(asked.request.order, self._num_arrived, asked, called))
        try:
            return await called
        except asyncio.CancelledError:
            self.give_back(asked)
            raise

    def _has_line(self) -> bool:
        while self._line and self._line[0].called.done():
            heappop(self._line)  # it was cancelled
        return bool(self._line)

    def _call(self) -> None:
        """Those first in line, as long as an engine has room."""
        while self._has_line() and (rank := self._reserve(self._line[0].asked)) is not None:
            heappop(self._line).called.set_result(rank)
