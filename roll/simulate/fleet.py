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
from roll.utils.spans import Spans


class EngineLeft(Exception):
    """The engine leaves its devices, and another is to go on with this request."""


@dataclass(eq=False)
class Flight:
    """Answers asked for at once. `context` tokens are before them, `new_tokens` of which nobody has asked yet under
    this session. Of the answers, `open` ones are still to end."""

    request: GenerationRequest
    context: int
    new_tokens: int
    lengths: Sequence[int]
    answered: Callable[[int, Answer], None] | None = None
    answers: list[Answer] = field(default_factory=list)
    open: dict[Answer, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = self.request.order
        self.answers = [Answer(order, self.context, length, nobody) for length in self.lengths]
        self.open = {answer: index for index, answer in enumerate(self.answers)}


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
            index = flight.open.pop(answer)
            if flight.answered is not None:
                flight.answered(index, answer)
            if not flight.open and not done.done():
                done.set_result(None)

        try:
            await self._begin_all(flight, begun, done, ended)
            await done
        except asyncio.CancelledError:
            if done.cancelled() or not done.done():  # else the engine is rid of them
                unanswered = self._open_of(flight)
                self.engine.abort(unanswered)
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
        return [answer for answer in self._flights[flight][1] if answer in flight.open and not answer.is_lost]

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
                key = request.session or request.request_id
                self.engine.begin(fresh, key, 0 if begun else flight.new_tokens)
            if moved:
                self.engine.go_on_with(moved)
            begun += part


class Fleet:
    """All engines. Those that leave their devices hand over to those that stay."""

    def __init__(self, costs: Costs, num_engines: int, max_running: int | None, spans: Spans):
        self._costs = costs
        self._choice = EngineChoice(num_engines, max_running, waits=True)
        self.cut: list[tuple[int, bool]] = []  # answers of requests that were cancelled, as `GroupBacklog.cut` has them
        self._queues = [EngineQueue(EngineModel(costs, spans, str(rank)), max_running) for rank in range(num_engines)]
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
        if self._costs.answer_s:
            await asyncio.sleep(self._costs.answer_s)
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
            except asyncio.CancelledError:
                if not flight.request.session:  # of episodes nobody asks
                    self.cut += [(round(answer.done), answer.is_whole) for answer in flight.answers if answer.stay]
                raise
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
            self.engines[rank].go_on(True)
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
            self.engines[rank].go_on(True)

    def slow_down(self, slowness: float) -> None:
        for engine in self.engines:
            engine.slow_down(slowness)

    def set_version(self, version: int) -> None:
        self.version = version
        for engine in self.engines:
            engine.set_version(version)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
