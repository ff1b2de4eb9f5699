"""The engines of a run as one asynchronous function, on a virtual clock: the real router, line and slots before
`EngineModel`s. What EngineClient and GenerateWorker do between processes happens here by calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from roll.distributed.executor.rollout.answer_slots import AnswerSlots
from roll.distributed.executor.rollout.answers import Continuation
from roll.distributed.executor.rollout.engine_choice import EngineChoice, PendingRequest
from roll.simulate.engine_model import Answer, EngineModel, EngineSeconds, nobody
from roll.simulate.setup import Costs
from roll.types.rollout import GenerationRequest


class EngineLeft(Exception):
    """The engine leaves its devices, and another is to go on with this request."""


@dataclass(eq=False)
class Flight:
    """Answers asked for at once. `context` tokens are before them. Of the answers, `open` ones are still to end."""

    request: GenerationRequest
    context: int
    lengths: Sequence[int]
    answers: list[Answer] = field(default_factory=list)
    open: dict[Answer, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = [Answer(self.context, length, nobody) for length in self.lengths]
        self.open = dict.fromkeys(self.answers)


class EngineQueue:
    """An engine with the line before it, as its process has them."""

    def __init__(self, engine: EngineModel, max_running: int | None):
        self.engine = engine
        self._slots = AnswerSlots(max_running)
        self._flights: dict[Flight, tuple[asyncio.Future[None], list[Answer]]] = {}  # with what was begun here

    async def answer(self, flight: Flight) -> None:
        """Begins as many open answers as there are slots, then the others as slots come back. Raises
        EngineLeft."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun: list[Answer] = []
        self._flights[flight] = (done, begun)

        def ended(answer: Answer) -> None:
            self._slots.give_back(1)
            del flight.open[answer]
            if not flight.open and not done.done():
                done.set_result(None)

        try:
            await self._begin_all(flight, begun, done, ended)
            await done
        except asyncio.CancelledError:
            if done.cancelled() or not done.done():  # else the engine is rid of them
                unanswered = self._open_of(flight)
                self.engine.take_out(unanswered)
                self._slots.give_back(len(unanswered))
            raise
        finally:
            del self._flights[flight]

    def hand_over(self) -> None:
        """Everything that it is at goes on elsewhere."""
        flights = {flight: self._open_of(flight) for flight in self._flights}
        self.engine.take_out([answer for answers in flights.values() for answer in answers])
        for flight, answers in flights.items():
            done = self._flights[flight][0]
            if not done.done():
                done.set_exception(EngineLeft())
            self._slots.give_back(len(answers))
        self._slots.leave()

    def _open_of(self, flight: Flight) -> list[Answer]:
        return [answer for answer in self._flights[flight][1] if answer in flight.open]

    async def _begin_all(
        self, flight: Flight, begun: list[Answer], done: asyncio.Future[None], ended: Callable[[Answer], None]
    ) -> None:
        request, waiting = flight.request, list(flight.open)
        place = self._slots.place(request.order)
        while waiting:
            count = await self._slots.take(request.request_id, len(waiting), place)
            if done.done():  # the engine left meanwhile
                self._slots.give_back(count)
                return
            part, waiting = waiting[:count], waiting[count:]
            for answer in part:
                answer.ended = ended
            moved = [answer for answer in part if answer.done]
            fresh = [answer for answer in part if not answer.done]
            if fresh:
                self.engine.begin(fresh, request.request_id)
            if moved:
                self.engine.go_on_with(moved)
            begun += part


class Fleet:
    """All engines. Those that leave their devices hand over to those that stay."""

    def __init__(self, costs: Costs, num_engines: int, max_running: int | None):
        self._choice = EngineChoice(num_engines, max_running, waits=True)
        self._queues = [EngineQueue(EngineModel(costs), max_running) for _ in range(num_engines)]
        self._away: set[int] = set()
        self.version = 0

    @property
    def engines(self) -> list[EngineModel]:
        return [replica.engine for replica in self._queues]

    @property
    def seconds(self) -> EngineSeconds:
        """Sum of the seconds of all engines."""
        return reduce(EngineSeconds.plus, (engine.catch_up() for engine in self.engines), EngineSeconds())

    async def generate(self, flight: Flight) -> list[Answer]:
        whole = Continuation(flight.request)
        while flight.open:
            call = PendingRequest(flight.request, whole)
            call.num_open = len(flight.open)
            try:
                replica = await self._choice.choose(call)
                assert replica is not None
                await self._queues[replica.rank].answer(flight)
            except EngineLeft:
                pass
            finally:
                self._choice.give_back(call)
        return flight.answers

    def leave(self, count: int) -> None:
        """The first so many engines leave their devices. If all do, they stand still with what they are at."""
        self._away = set(range(count))
        for rank in self._away:
            if count < len(self._queues):
                self._choice.close(self._choice.replicas[rank])
                self._queues[rank].hand_over()
            self.engines[rank].stop("away")

    def come_back(self) -> None:
        away, self._away = self._away, set()
        for rank in away:
            self.engines[rank].go_on()
        for replica in (self._choice.replicas[rank] for rank in away):
            if replica.is_away:
                replica.is_away = False
                self._choice.reopen(replica)

    def hold(self) -> None:
        """Pause the engines that are on their devices."""
        for rank in set(range(len(self._queues))) - self._away:
            self.engines[rank].stop("held")

    def release(self) -> None:
        """Resumes the engines, with keys and values computed again."""
        for rank in set(range(len(self._queues))) - self._away:
            self.engines[rank].go_on()

    def slow_down(self, slowness: float) -> None:
        for engine in self.engines:
            engine.slow_down(slowness)

    def set_version(self, version: int) -> None:
        self.version = version
        for engine in self.engines:
            engine.set_version(version)
