"""The work of a rollout engine's process: many requests in flight, results handed over in batches. No Ray here."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from roll.datasets.encoding import Decode, decoder
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.pixels import awaited_pixels
from roll.distributed.executor.rollout.answer_slots import AnswerSlots
from roll.distributed.executor.rollout.answers import NOTHING, joined, names_of, nobody, rest_of
from roll.distributed.executor.rollout.engine_meter import EngineMeter
from roll.distributed.executor.rollout.finished_requests import (
    EngineUnavailable,
    Finished,
    FinishedRequests,
    is_large,
    store,
)
from roll.distributed.executor.worker import build_strategy
from roll.distributed.strategy.base import State
from roll.distributed.strategy.generate_base import GenerateStrategy
from roll.distributed.strategy.stop_strings import StopStrings
from roll.distributed.weights.bucket import BucketSource, GroupSpec
from roll.errors import EngineDied, StrategyError, describe
from roll.models.tokenizer import tokenizer_of
from roll.types.batch import SampledRows
from roll.types.group_codec import TextTable
from roll.types.rollout import Answered, Generation, GenerationRequest
from roll.utils.background import BackgroundTasks, contained, start
from roll.utils.worker_usage import TraceOptions, Usage

# Whether an engine lives: it is asked now and then, and whoever waits for one that died is told.

T = TypeVar("T")
_LONGEST_WATCH_INTERVAL_S = 30.0


class EngineMonitor:
    """Belongs to the event loop of the engine's process. `on_death` is called when the engine has died."""

    def __init__(self, strategy: GenerateStrategy, role: str, patience_s: float, on_death: Callable[[], None]):
        self._strategy, self._role, self._patience_s = strategy, role, patience_s
        self._on_death = on_death
        self._death: str | None = None
        self._is_dead = asyncio.Event()

    @property
    def death(self) -> str | None:
        return self._death

    async def wait_until_dead(self) -> None:
        await self._is_dead.wait()

    async def check(self) -> None:
        """Raises EngineDied if the engine can serve no more requests."""
        if self._death is not None:
            raise EngineDied(self._death)
        await self._strategy.check_health()

    def died(self, cause: str) -> None:
        """The first cause stands."""
        self._death = self._death or cause
        self._is_dead.set()
        self._on_death()

    async def watch(self) -> None:
        """Returns when the engine is gone."""
        while self._death is None:
            await asyncio.sleep(min(self._patience_s / 2, _LONGEST_WATCH_INTERVAL_S))
            try:
                await asyncio.wait_for(contained(self._strategy.heartbeat()), self._patience_s)
            except TimeoutError:
                self.died(
                    f"the engine hangs: no sign of life for {self._patience_s / 60:g} min (backend_timeout of "
                    f"{self._role}); its log may say why"
                )
                await asyncio.to_thread(self._strategy.shutdown)  # or it would keep its devices
            except Exception as error:
                self.died(describe(error))

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises EngineDied as soon as the engine is given up: one that hangs never answers."""
        death = start(self._is_dead.wait())
        outcome = asyncio.gather(start(work), return_exceptions=True)  # else what comes too late would be logged
        try:
            await asyncio.wait((outcome, death), return_when=asyncio.FIRST_COMPLETED)
            if self._death is not None:
                raise EngineDied(self._death)
            (result,) = outcome.result()
        finally:
            outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            outcome.cancel()
            death.cancel()
        if isinstance(result, EngineDied):
            self.died(str(result))
        if isinstance(result, BaseException):
            raise result
        return result


# What an engine has ready for a client, until that takes it: results that come close together travel together.

# After the first result, a share of the time it took is spent on waiting for more: they travel together.
_LINGER_FRACTION, _LONGEST_LINGER_S = 0.05, 0.02
# Answers of a request that goes on wait for as long for others to travel with, as a share of the time they took.
_EARLY_FRACTION, _LONGEST_EARLY_S = 0.1, 0.25


@dataclass
class EarlyResult:
    """Answers that are ready of a request that is still running."""

    request: GenerationRequest
    started: float
    answers: dict[int, Generation] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


@dataclass
class Mailbox:
    """Results that are ready for one client."""

    finished: list[Finished] = field(default_factory=list)
    early: dict[str, EarlyResult] = field(default_factory=dict)  # by request
    alarm: asyncio.TimerHandle | None = None  # for what came early
    something: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # what still runs
    has_refused: bool = False  # requests, since the last take

    def answered(self, early: EarlyResult, number: int, generation: Generation) -> None:
        early.answers[number] = generation
        self.early[early.request.request_id] = early
        now = asyncio.get_running_loop().time()
        if self.alarm is None:
            linger_s = min(_LONGEST_EARLY_S, _EARLY_FRACTION * (now - early.started))
            self.alarm = asyncio.get_running_loop().call_later(linger_s, self.something.set)

    def ended(self, early: EarlyResult, result: Mapping[int, Generation] | str) -> None:
        """Stores the end of a request, without the responses that were already taken."""
        self.early.pop(early.request.request_id, None)
        if not isinstance(result, str):
            result = {number: answer for number, answer in result.items() if number not in early.taken}
            if not result:
                return
        self.finished.append((early.request, result))
        self.something.set()

    async def wait(self) -> list[Finished]:
        started = time.monotonic()
        await self.something.wait()
        if self.tasks:
            linger_s = min(_LONGEST_LINGER_S, _LINGER_FRACTION * (time.monotonic() - started))
            await asyncio.wait(self.tasks, timeout=linger_s)
        return self._empty()

    def _empty(self) -> list[Finished]:
        results, self.finished = self.finished, []
        for early in self.early.values():
            results.append((early.request, early.answers))
            early.taken |= early.answers.keys()
            early.answers = {}
        self.early = {}
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        return results


_NOT_READY = EngineUnavailable("it replaced a process that died, and is not ready yet", died=False)


@dataclass
class _Flight:
    """A request that has come."""

    request: GenerationRequest
    parts: list[str] = field(default_factory=list)  # what the engine knows as requests
    is_aborted: bool = False
    num_whole: int = 0  # answers


class GenerateWorker:
    """One engine. `submit` and `take` are the two ends of a queue; every client (the driver, a worker that plays
    episodes) has its own. At most `max_answers` are in flight, the others wait in line. An engine that gives no sign of
    life for `backend_timeout` is ended, as if it had died.

    One that takes the place of a dead engine refuses requests until it is set up, and, if it `waits_for_weights`, until
    its first weight update. One that leaves its devices keeps its requests until it is back (`offload_states`), or ends
    them as "moved" with what there is of their answers (`hand_over`): then another goes on with them."""

    def __init__(self, blueprint: Blueprint, max_answers: int | None = None, waits_for_weights: bool = False):
        self.strategy: GenerateStrategy = build_strategy(blueprint)
        patience_s = 60.0 * blueprint.settings.backend_timeout
        self._life = EngineMonitor(self.strategy, blueprint.role, patience_s, self._wake_clients)
        self._settings = blueprint.settings
        self._slots = AnswerSlots(max_answers)
        self._meter = EngineMeter(blueprint)
        self._flights: dict[str, _Flight] = {}  # by request
        self._is_home = asyncio.Event()  # it hands nothing over
        self._is_home.set()
        self._away: frozenset[State] = frozenset()
        self._waits_for_weights = waits_for_weights
        self._is_whole = False  # it has had all the trainer's weights once
        self._serves = asyncio.Event()  # it is set up, and has the weights that it waits for
        self._mailboxes: defaultdict[str, Mailbox] = defaultdict(Mailbox)
        self._tasks = BackgroundTasks(on_failure=lambda error: self._life.died(describe(error)))

    async def setup(self) -> int:
        """Returns how many processes of the engine read weights."""
        try:
            self.strategy.setup()
            await self.strategy.start()
        except Exception as error:  # else who waits until it serves would wait for ever
            self._life.died(describe(error))
            raise
        self._tasks.start(self._life.watch())
        if not self._waits_for_weights:
            self._serves.set()
        return self.strategy.num_weight_receivers

    def takes_parts(self) -> bool:
        """Whether weight updates may leave out what did not change."""
        return self.strategy.takes_parts

    def submit(self, requests: Sequence[GenerationRequest], client: str = "") -> None:
        mailbox = self._mailboxes[client]
        if self._life.death is not None or not self._serves.is_set():
            mailbox.has_refused = True
            mailbox.something.set()  # `take` says why
            return
        for request in requests:
            task = self._tasks.start(self._serve(request, mailbox))
            mailbox.tasks.add(task)
            task.add_done_callback(mailbox.tasks.discard)

    async def take(self, client: str = "") -> FinishedRequests:
        """Everything of this client that finished since its last take; waits for something."""
        return FinishedRequests.pack(*await self._finished(self._mailboxes[client]))

    async def take_apart(self, client: str = "") -> tuple[FinishedRequests, SampledRows | None, TextTable | None]:
        """The same for a client that reads no tokens: of many, what is known comes first, then rows, then texts."""
        results, gone = await self._finished(self._mailboxes[client])
        if not is_large(results):
            return FinishedRequests.pack(results, gone), None, None
        return await asyncio.to_thread(lambda: store(results, self._decoders, gone))  # loads them, the first time

    async def _finished(self, mailbox: Mailbox) -> tuple[list[Finished], EngineUnavailable | None]:
        results = await mailbox.wait()
        refusal = _NOT_READY if mailbox.has_refused else None
        gone = refusal if self._life.death is None else EngineUnavailable(self._life.death)
        mailbox.has_refused = False
        if self._life.death is None:
            mailbox.something.clear()
        return results, gone

    @cached_property
    def _decoders(self) -> tuple[Decode, Decode]:
        """Token ids to texts, as `RowTexts` holds them. Loaded when they are first needed."""
        tokenizer = tokenizer_of(self._settings.model_args)
        return decoder(tokenizer), decoder(tokenizer, skip_special_tokens=False)

    async def check_health(self) -> None:
        """Raises EngineDied if the engine can serve no more requests."""
        await self._life.check()

    async def wait_until_dead(self) -> None:
        """Returns when the engine can serve no more requests."""
        await self._life.wait_until_dead()

    async def wait_serving(self) -> None:
        """Returns when the engine may be asked. Raises EngineDied if it cannot."""
        await self._life.while_alive(self._serves.wait())
        await self._life.while_alive(self._is_home.wait())
        await self.check_health()

    def forget_client(self, client: str) -> None:
        """The client is gone: nobody will take its answers, so its requests end."""
        mailbox = self._mailboxes.pop(client, Mailbox())
        for task in mailbox.tasks:
            task.cancel()
        mailbox.something.set()

    def _wake_clients(self) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.something.set()

    async def _serve(self, request: GenerationRequest, mailbox: Mailbox) -> None:
        early = EarlyResult(request, asyncio.get_running_loop().time())
        answered = partial(mailbox.answered, early) if request.tells_each else nobody
        try:
            result: Mapping[int, Generation] | str = await self._answer(request, answered)
        except Exception as error:
            if isinstance(error, EngineDied):
                self._life.died(str(error))
            if self._life.death is not None:
                return  # it may be a consequence: the client asks another engine
            result = describe(error)
        mailbox.ended(early, result)

    async def _answer(self, request: GenerationRequest, answered: Answered) -> Mapping[int, Generation]:
        """Begins as many answers as there are slots, then the others as slots come back."""
        parts: list[asyncio.Task[list[Generation]]] = []
        begun, total, place = 0, request.num_samples, self._slots.place(request.order)
        if not self._is_home.is_set():
            return dict.fromkeys(request.samples, self._cut_short(request))
        flight = self._flights[request.request_id] = _Flight(request)
        try:
            while begun < total:
                count = await self._slots.take(request.request_id, total - begun, place)
                if flight.is_aborted:
                    self._slots.give_back(count)
                    break
                part = request.part(begun, count)
                flight.parts.append(part.request_id)
                parts.append(start(self._begin(part, flight, answered)))
                begun += count
            answers = [answer for part in await asyncio.gather(*parts) for answer in part]
            return dict(zip(request.samples, answers + [self._cut_short(request)] * (total - begun), strict=True))
        finally:
            for part in parts:
                part.cancel()
            self._flights.pop(request.request_id, None)

    async def _begin(self, part: GenerationRequest, flight: _Flight, on_answer: Answered) -> list[Generation]:
        """Gives the slot of each answer back as soon as that is there."""
        num_open = part.num_samples
        whole: dict[int, Generation] = {}

        def answered(number: int, rest: Generation) -> None:
            nonlocal num_open
            generation = whole[number] = self._ended(part, rest)
            num_open -= 1
            self._slots.give_back(1)
            self._meter.answered(pending, rest)
            on_answer(number, generation)
            flight.num_whole += generation.finish_reason != "abort"
            if flight.num_whole == part.enough and not flight.is_aborted:
                flight.is_aborted = True  # for those that are not begun
                self._tasks.start(self._cut([flight]))

        if flight.is_aborted:
            self._slots.give_back(num_open)
            return [self._cut_short(part)] * num_open
        pending = rest_of(part)
        self._meter.begin(pending)
        try:
            shown = pending
            if pending.media:
                shown = replace(pending, media=await awaited_pixels(pending.media))
            await self.strategy.generate(shown, answered)
            return [whole[number] for number in part.samples]
        finally:
            self._slots.give_back(num_open)
            self._meter.cut(num_open)

    def _ended(self, part: GenerationRequest, rest: Generation) -> Generation:
        generation = joined(part, rest, lambda: self._stop_strings)
        is_moved = generation.finish_reason == "abort" and not self._is_home.is_set()
        if not is_moved:
            return generation
        if rest.num_tokens:
            self._meter.moved()
        return replace(generation, finish_reason="moved")

    def _cut_short(self, request: GenerationRequest) -> Generation:
        """An answer that was not begun here."""
        return self._ended(request, NOTHING)

    @cached_property
    def _stop_strings(self) -> StopStrings:
        return StopStrings.of(tokenizer_of(self._settings.model_args))

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await asyncio.sleep(0)  # what was submitted just now is in flight then
        gone = None if request_ids is None else set(request_ids)
        named = self._flights.items()
        await self._cut([flight for name, flight in named if gone is None or not gone.isdisjoint(names_of(name))])

    async def _cut(self, flights: Sequence[_Flight]) -> None:
        for flight in flights:
            flight.is_aborted = True
        self._slots.leave(flight.request.request_id for flight in flights)
        await self._life.while_alive(self.strategy.abort([part for flight in flights for part in flight.parts]))

    def usage(self, request: TraceOptions) -> Usage:
        return self._meter.take(request)

    async def hand_over(self, states: frozenset[State]) -> None:
        """Leaves the devices until `load_states`, and ends what is in flight so that another engine goes on with it."""
        self._is_home.clear()
        await self.abort()
        await self.offload_states(states)

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        await self._life.while_alive(self.strategy.join_weight_group(group, first_rank))

    async def receive_weights(
        self, source: BucketSource, is_first: bool, version: int | None, whole: bool = True
    ) -> int:
        """One bucket. `version` comes with the last one, and ends the update. Returns the engine's version. Unless
        `whole`, the update brings only what training changes."""
        return await self._life.while_alive(self._receive(source, is_first, version, whole))

    async def _receive(self, source: BucketSource, is_first: bool, version: int | None, whole: bool) -> int:
        if is_first:
            if not whole and not self._is_whole:
                raise StrategyError(
                    "a partial weight update was sent to an engine that has not received all weights yet"
                )
            self._is_whole = not whole
            self._meter.hold()
            await self.strategy.begin_weight_update(whole)
        await self.strategy.import_weights(source)
        if version is not None:
            await self.strategy.finish_weight_update(version)
            self._is_whole = True
            self._meter.go_on()
            self._serves.set()
        return self.strategy.policy_version

    async def offload_states(self, states: frozenset[State]) -> None:
        self._meter.leave(states)
        self._away |= states
        await self._life.while_alive(asyncio.to_thread(self.strategy.offload_states, states))

    async def load_states(self, states: frozenset[State]) -> None:
        await self._life.while_alive(asyncio.to_thread(self.strategy.load_states, states))
        self._meter.come_back(states)
        self._away -= states
        if not self._away:
            self._is_home.set()

    async def shutdown(self) -> None:
        self._tasks.cancel()
        self.strategy.shutdown()
