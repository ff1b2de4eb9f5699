"""The engines of a run as one asynchronous function, on a virtual clock: the real router and the real slots before
`EngineModel`s. What EngineClient and GenerateWorker do between processes happens here by calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from roll.distributed.executor.rollout.answer_slots import AnswerSlots, Place
from roll.distributed.executor.rollout.engine_router import EngineRouter
from roll.distributed.scheduler.simulate.costs import Costs
from roll.distributed.scheduler.simulate.engine_model import Answer, EngineModel, EngineSeconds
from roll.types.rollout import GenerationRequest
from roll.utils.spans import Spans


class EngineLost(Exception):
    """The engine died with this request."""


@dataclass
class Flight:
    """Answers asked for at once. `context` tokens are before them, `new_tokens` of which nobody has asked yet under
    this session."""

    request: GenerationRequest
    context: int
    new_tokens: int
    lengths: Sequence[int]
    answered: Callable[[int, Answer], None] | None = None
    answers: list[Answer] = field(default_factory=list)


class Seat:
    """An engine with the line before it, as its process has them."""

    def __init__(self, engine: EngineModel, max_running: int | None, cut: list[tuple[int, bool]]):
        """`cut` gets the answers of what is cancelled: tokens, and whether each was whole."""
        self.engine, self._cut = engine, cut
        self._slots = AnswerSlots(max_running)

    async def answer(self, flight: Flight) -> None:
        """Begins as many answers as there are slots, then the others as slots come back. Raises EngineLost."""
        request, total = flight.request, flight.request.num_samples
        place = self._slots.place(request.order)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        num_open = total

        def ended(answer: Answer) -> None:
            nonlocal num_open
            num_open -= 1
            self._slots.give_back(1)
            if done.done():
                return
            if answer.is_lost:
                done.set_exception(EngineLost())
            else:
                if flight.answered is not None:
                    flight.answered(flight.answers.index(answer), answer)
                if not num_open:
                    done.set_result(None)

        flight.answers = []
        try:
            await self._begin_all(flight, place, done, ended)
            await done
        except asyncio.CancelledError:
            self.engine.abort(flight.answers)
            if not request.session:  # of episodes nobody asks
                self._cut += [(round(answer.done), answer.is_whole) for answer in flight.answers]
            self._slots.give_back(num_open - total + len(flight.answers))
            raise

    async def _begin_all(
        self, flight: Flight, place: Place, done: asyncio.Future[None], ended: Callable[[Answer], None]
    ) -> None:
        request, total = flight.request, flight.request.num_samples
        while (begun := len(flight.answers)) < total:
            count = await self._slots.take(request.request_id, total - begun, place)
            if done.done():  # the engine died meanwhile
                self._slots.give_back(count)
                return
            lengths = flight.lengths[begun : begun + count]
            part = [Answer(request.order, flight.context, length, ended) for length in lengths]
            flight.answers += part
            self.engine.begin(part, request.session or request.request_id, flight.new_tokens if not begun else 0)


class Fleet:
    """All engines. One that dies loses its requests, which are asked again elsewhere, and serves again later."""

    def __init__(self, costs: Costs, num_engines: int, max_running: int | None, spans: Spans):
        self._costs = costs
        self._router = EngineRouter(num_engines)
        self.cut: list[tuple[int, bool]] = []  # answers of requests that were cancelled, as `GroupsLeft.cut` has them
        self._seats = [Seat(EngineModel(costs, spans, str(rank)), max_running, self.cut) for rank in range(num_engines)]
        self._back = asyncio.Event()
        self.version = 0

    @property
    def engines(self) -> list[EngineModel]:
        return [seat.engine for seat in self._seats]

    @property
    def seconds(self) -> EngineSeconds:
        """Of all engines together."""
        return reduce(EngineSeconds.plus, (engine.catch_up() for engine in self.engines), EngineSeconds())

    async def generate(self, flight: Flight) -> list[Answer]:
        if self._costs.answer_s:
            await asyncio.sleep(self._costs.answer_s)
        while True:
            rank = await self._choose(flight.request)
            self._router.add(rank, flight.request.num_samples)
            try:
                await self._seats[rank].answer(flight)
            except EngineLost:  # the router has forgotten what it owed
                continue
            except asyncio.CancelledError:
                self._router.add(rank, -flight.request.num_samples)
                raise
            self._router.add(rank, -flight.request.num_samples)
            return flight.answers

    async def _choose(self, request: GenerationRequest) -> int:
        while (rank := self._router.choose(request)) is None:
            self._back.clear()
            await self._back.wait()
        return rank

    def stop(self, why: str) -> None:
        for engine in self.engines:
            engine.stop(why)

    def go_on(self, recompute: bool = True) -> None:
        for engine in self.engines:
            engine.go_on(recompute)

    def set_version(self, version: int) -> None:
        self.version = version
        for engine in self.engines:
            engine.set_version(version)

    async def kill(self, rank: int) -> None:
        """Returns when the engine serves again."""
        self._router.leave(rank)
        self._seats[rank].engine.die()
        await asyncio.sleep(self._costs.restart_s)
        self._router.come(rank)
        self._back.set()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
