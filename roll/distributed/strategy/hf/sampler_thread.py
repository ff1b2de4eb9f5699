"""The thread in which a `BatchSampler` runs, and its asyncio front."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from roll.distributed.strategy.hf.sampler import Answer, BatchSampler
from roll.errors import EngineDied, StrategyError
from roll.types.rollout import Answered, Generation, GenerationRequest

T = TypeVar("T")
_JOIN_TIMEOUT_S = 10.0


@dataclass
class _Open:
    """A request in flight, with the answers that are there."""

    request: GenerationRequest
    answered: Answered | None
    whole: asyncio.Future[list[Generation]]
    answers: dict[int, Generation] = field(default_factory=dict)


class SamplerThread:
    """Steps the sampler while it has work and nobody holds it; runs everything that touches sampler or model between
    two tokens.

    Requests that arrive in the same turn of the event loop are handed over together, so that they are prefilled
    together.
    """

    def __init__(self, sampler: BatchSampler):
        self._sampler = sampler
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], object]] = deque()
        self.holds: set[str] = set()  # reasons to sample nothing; belongs to the thread
        self._stopping = False
        self._failure: StrategyError | None = None
        self._open: dict[str, _Open] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._arrived: list[GenerationRequest] = []
        self._thread = threading.Thread(target=self._run, name="hf_sampler", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        self.check()
        self._sampler.check(request)
        if request.request_id in self._open:
            raise StrategyError(
                f"request {request.request_id} is in flight already: give every request an id of its own"
            )
        whole: asyncio.Future[list[Generation]] = self._loop.create_future()
        self._open[request.request_id] = _Open(request, answered, whole)
        if not self._arrived:
            self._loop.call_soon(self._hand_over)
        self._arrived.append(request)
        try:
            return await whole
        except asyncio.CancelledError:
            # Nobody waits for it any more; its rows leave the batch.
            with contextlib.suppress(StrategyError):
                self._post(lambda: self._sampler.abort([request.request_id]))
            raise
        finally:
            self._open.pop(request.request_id, None)

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        self._hand_over()
        await self.call(lambda: self._sampler.abort(request_ids))

    async def hold(self, reason: str) -> None:
        """No token is sampled after this returns, until `release` of every reason."""
        await self.call(lambda: self.holds.add(reason))

    async def release(self, reason: str) -> None:
        await self.call(lambda: self.holds.discard(reason))

    async def call(self, function: Callable[[], T]) -> T:
        """function() in the thread, between two tokens."""
        self.check()
        result: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(result)
        result.add_done_callback(self._calls.discard)

        def run() -> None:
            try:
                value = function()
            except Exception as error:
                self._to_loop(_set_exception, result, error)
            else:
                self._to_loop(_set_result, result, value)

        self._post(run)
        return await result

    def run_between_tokens(self, function: Callable[[], T]) -> T:
        """function() in the thread; blocks, so it must not be called by the event loop."""
        if threading.get_ident() == self._loop_thread:
            raise StrategyError("this call blocks: make it from another thread than the event loop's")
        return asyncio.run_coroutine_threadsafe(self.call(function), self._loop).result()

    def check(self) -> None:
        """Raises what ended the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends the thread after the current token; requests and calls in flight raise StrategyError. Called from any
        thread."""
        self._failure = self._failure or StrategyError("the rollout engine was shut down")
        self._to_loop(self._fail, self._failure)
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _hand_over(self) -> None:
        arrived, self._arrived = self._arrived, []
        if arrived and self._failure is None:
            self._post(lambda: [self._sampler.submit(request) for request in arrived])

    def _post(self, command: Callable[[], object]) -> None:
        self.check()
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._commands or self._stopping or (self._sampler.has_work and not self.holds)):
                        self._wake.wait()
                    if self._stopping:
                        return
                    commands, self._commands = self._commands, deque()
                for command in commands:
                    command()
                is_free = self._sampler.has_work and not self.holds
                # What was aborted while held has ended, too.
                answers = self._sampler.step() if is_free else self._sampler.take_answers()
                if answers:
                    self._to_loop(self._deliver, answers)
        except BaseException as error:
            failure = EngineDied(f"hf_infer failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._to_loop(self._fail, failure)

    def _to_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, answers: list[Answer]) -> None:
        for answer in answers:
            flight = self._open.get(answer.request_id)
            if flight is None:
                continue
            flight.answers[answer.index] = answer.generation
            if flight.answered is not None:
                flight.answered(answer.index, answer.generation)
            if len(flight.answers) == flight.request.num_samples:
                _set_result(flight.whole, [flight.answers[index] for index in flight.request.samples])

    def _fail(self, failure: StrategyError) -> None:
        self._failure = self._failure or failure
        for future in [*(flight.whole for flight in self._open.values()), *self._calls]:
            _set_exception(future, self._failure)


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
