"""The rollout engines as one asynchronous function, for any process: what comes in one tick travels together."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import ray
from ray.exceptions import RayActorError

from roll.distributed.executor.pools.job import packed
from roll.distributed.executor.processes.cluster import WorkerHandles, death_of
from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.distributed.executor.rollout.answers import Continuation
from roll.distributed.executor.rollout.engine_choice import EngineChoice, PendingRequest, Replica
from roll.distributed.executor.rollout.finished_requests import FinishedRequests
from roll.errors import RollError, StrategyError, WorkerError, describe
from roll.types.rollout import Answered, Generation, GenerationRequest
from roll.utils.background import BackgroundTasks, start

# How long the answers of cancelled requests were when their engine cut them short.

CutAnswer = tuple[int, bool]
"""Tokens of an answer that nobody waits for any more, and whether it had come to its end."""


class CutLengths:
    """Answers that engines hand over of aborted requests, on one event loop, kept until `take` where `are_taken`."""

    def __init__(self, are_taken: bool) -> None:
        self._are_taken = are_taken
        self._open: dict[tuple[int, str], int] = {}  # answers that an engine owes, by its rank and the request
        self._came: list[CutAnswer] = []
        self._all_came = asyncio.Event()
        self._all_came.set()

    def waits_for(self, rank: int) -> bool:
        return any(engine == rank for engine, _ in self._open)

    def expect(self, rank: int, request_id: str, num_answers: int) -> None:
        """Wait for so many answers of a request that was cancelled."""
        self._open[rank, request_id] = num_answers
        self._all_came.clear()

    def receive(self, rank: int, request_id: str, answers: Iterable[Generation] | None) -> None:
        """Record some of the answers; None: the engine hands nothing over."""
        num_open = self._open.pop((rank, request_id), 0)
        came = [(answer.num_tokens, answer.finish_reason not in ("abort", "moved")) for answer in answers or ()]
        if self._are_taken:
            self._came += came
        if answers is not None and num_open > len(came):
            self._open[rank, request_id] = num_open - len(came)
        elif not self._open:
            self._all_came.set()

    def drop_engine(self, rank: int) -> None:
        """Wait for nothing from an engine that is gone."""
        self._open = {key: count for key, count in self._open.items() if key[0] != rank}
        if not self._open:
            self._all_came.set()

    async def take(self) -> list[CutAnswer]:
        await self._all_came.wait()
        came, self._came = self._came, []
        return came


T = TypeVar("T")
logger = logging.getLogger(__name__)

RETRIED_REQUESTS = "rollout/retried_requests"  # the metric
_MAX_DEATHS = 3
_RETURN_POLL_S = 1.0


class _RefusedError(WorkerError):
    """The engine took the place of one that died, and does not serve yet. Nobody died of the request."""


class EngineClient:
    """Reaches the workers of actor_infer from one event loop. It can be sent to another process before its first use;
    `name` tells the clients apart, and each balances its own load.

    Where there are several engines, one that dies, or gives its devices up, is left out until it serves again, and what
    is missing of its requests goes to another: answers that came stand, and those that were handed over go on.
    Meanwhile the others get `room` answers each, at most. A request that saw `_MAX_DEATHS` engines die is taken to be
    the cause, and fails. If the client `waits`, requests for which no engine is left wait for one to come back."""

    stores_answers: ClassVar[bool] = False  # True: of many tokens only handles come, see `take_apart`
    takes_cut: ClassVar[bool] = False  # True: somebody reads the lengths of cancelled answers, `cut.take`

    def __init__(self, workers: WorkerHandles, name: str = "", room: int | None = None, waits: bool = False):
        self.workers = workers
        self.name = name
        self.waits = waits
        self.num_retries = 0
        self.cut = CutLengths(self.takes_cut)  # of requests that were cancelled
        self._engines = EngineChoice(len(workers.handles), room, self.waits)
        self._router, self._replicas = self._engines.router, self._engines.replicas
        self._tasks = BackgroundTasks()

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        """`request.num_samples` answers from one engine (see `EngineChoice`); `answered` is told of each as soon as it
        is here. Raises StrategyError if it refuses the request, WorkerError if no engine is left or too many died of
        it. Cancelling it aborts the request."""
        if self.name:  # an episode that is played again in another process asks under the same ids
            request = replace(request, request_id=f"{self.name}/{request.request_id}")
        whole = Continuation(replace(request, tells_each=True) if answered else request, answered)
        return await self._until_whole(whole)

    async def _until_whole(self, whole: Continuation) -> list[Generation]:
        deaths = 0
        while (answers := whole.answers()) is None:
            parts = [PendingRequest(part, whole) for part in whole.missing()]
            if len(parts) == 1:
                ended = [await self._ask_somewhere(parts[0])]
            else:
                for part in parts:
                    part.parts = parts
                ended = await _all([self._ask_somewhere(part) for part in parts])
            errors = [error for error in ended if error is not None]
            if not errors:
                continue
            deaths += not all(isinstance(error, _RefusedError) for error in errors)
            if deaths == _MAX_DEATHS or not (self.waits or self._router.has_engines):
                raise errors[0]
            self.num_retries += 1
        return answers

    async def _ask_somewhere(self, call: PendingRequest) -> WorkerError | None:
        """Returns when the engine owes nothing of it any more; the error if it died."""
        if (replica := await self._engines.choose(call)) is None:
            return None
        try:
            await self._request(replica, call)
        except WorkerError as error:
            return error
        return None

    def loads(self) -> dict[int, int]:
        return self._router.loads

    async def _request(self, replica: Replica, pending: PendingRequest) -> None:
        request = pending.request
        if request.request_id in replica.waiting:
            self._engines.give_back(pending)
            raise ValueError(f"request {request.request_id!r} is in flight already")
        replica.waiting[request.request_id] = pending
        replica.outbox.append(request)
        if replica.exchange is None or replica.exchange.done():
            replica.exchange = self._tasks.start(self._exchange(replica))
        elif len(replica.outbox) == 1:
            asyncio.get_running_loop().call_soon(self._submit, replica)
        try:
            await pending.done
        except asyncio.CancelledError:
            self._forget(replica, pending)
            raise

    def _submit(self, replica: Replica) -> None:
        requests, replica.outbox = replica.outbox, []
        if requests:
            self._tasks.start(self._hand_in(replica, requests))

    async def _hand_in(self, replica: Replica, requests: list[GenerationRequest]) -> None:
        """An engine that does not take them would leave them waiting: they fail with what it says."""
        try:
            # Ray's own pickler keeps pictures in the object store for as long as somebody holds their handles.
            payload = requests if any(request.media for request in requests) else packed(requests)
            reply = await self._call(replica, "submit", payload, self.name)
        except RayActorError:  # of this, and of a reply that says the same, `take` tells, too
            return
        except Exception as failure:  # they could not even be sent
            error: RollError = WorkerError(
                f"{self.workers.role} rank {replica.rank} failed in submit: {describe(failure)}"
            )
        else:
            if not isinstance(reply, Failure) or reply.died:
                return
            error = worker_error(self.workers.role, "submit", [reply])
        for request in requests:
            self.cut.receive(replica.rank, request.request_id, None)
            if (call := replica.waiting.pop(request.request_id, None)) is not None:
                self._engines.has_less_load(replica.rank, call.num_open)
                call.fail(error)

    async def _exchange(self, replica: Replica) -> None:
        try:
            await asyncio.sleep(0)  # the other requests of this tick
            self._submit(replica)
            while replica.waiting or self.cut.waits_for(replica.rank):
                reply, *handles = await self._take(replica)
                if isinstance(reply, Failure):
                    raise worker_error(self.workers.role, "take", [reply])
                self._settle(replica, reply, handles)
                if (gone := reply.gone) is not None and not gone.died:
                    raise _RefusedError(f"{self.workers.role} rank {replica.rank}: {gone.cause}")
                if gone is not None:
                    raise worker_error(self.workers.role, "generate", [Failure(replica.rank, gone.cause, died=True)])
        except RayActorError as error:
            failure = death_of(error, replica.rank)
            self._fail(replica, worker_error(self.workers.role, "generate", [failure]))
        except RollError as error:
            self._fail(replica, error)
        except Exception as error:  # a fault of ours must not leave everybody waiting
            self._fail(replica, WorkerError(f"{self.workers.role} rank {replica.rank}: {describe(error)}"))

    async def _take(self, replica: Replica) -> Sequence[Any]:
        if not self.stores_answers:
            return (await self._call(replica, "take", self.name),)
        call = self.workers.handles[replica.rank].call_split.options(num_returns=3)
        reply, *handles = call.remote("take_apart", 2, self.name)
        return (await reply, *handles)

    def _call(self, replica: Replica, method: str, *arguments: object) -> ray.ObjectRef:
        return self.workers.handles[replica.rank].call.remote(method, *arguments)

    def _settle(self, replica: Replica, finished: FinishedRequests, handles: Sequence[object]) -> None:
        for request_id, result in finished.unpack(handles):
            if (call := replica.waiting.get(request_id)) is None:
                self.cut.receive(replica.rank, request_id, None if isinstance(result, str) else result.values())
                continue
            num_ended = call.num_open if isinstance(result, str) else len(result)
            if num_ended == call.num_open:
                del replica.waiting[request_id]
            if isinstance(result, str):
                call.fail(StrategyError(f"{self.workers.role} rank {replica.rank}: {result}"))
            else:
                if any(answer.finish_reason == "moved" for answer in result.values()):
                    self._went_away(replica)
                for number, answer in result.items():
                    call.to.receive(number, answer)
                call.count(len(result))
                if call.to.has_enough:
                    for part in call.parts:
                        self._cut(part)
            self._engines.has_less_load(replica.rank, num_ended)

    def _forget(self, replica: Replica, call: PendingRequest) -> None:
        request = call.request
        if replica.waiting.pop(request.request_id, None) is None or replica.failure is not None:
            return
        if request in replica.outbox:
            replica.outbox.remove(request)
        else:
            self.cut.expect(replica.rank, request.request_id, call.num_open)
            self._call(replica, "abort", [request.request_id])
        self._engines.has_less_load(replica.rank, call.num_open)

    def _cut(self, call: PendingRequest) -> None:
        """Ends a request early, with the tokens it has so far, since there are enough responses without it."""
        if call.is_cut:
            return
        call.is_cut = True
        replica = None if call.rank is None else self._replicas[call.rank]
        if replica is None or call.request.request_id not in replica.waiting:
            self._engines.retry_choice()
        elif call.request in replica.outbox:
            self._forget(replica, call)
            call.finish()
        elif not call.done.done():
            self._call(replica, "abort", [call.request.request_id])

    def _fail(self, replica: Replica, error: RollError) -> None:
        if replica.failure is not None:  # two calls may tell of one death
            return
        replica.failure = error
        num_requests = len(replica.waiting)
        for call in replica.waiting.values():
            call.fail(error)
        replica.waiting.clear()
        replica.outbox.clear()
        self.cut.drop_engine(replica.rank)
        self._engines.leave(replica)
        if self.waits or len(self._replicas) > 1:
            logger.warning("%s. Requests that are sent again: %d", error, num_requests)
            if not isinstance(error, _RefusedError):
                self._lost(replica.rank, error)
            self._tasks.start(self._await_return(replica))

    def _went_away(self, replica: Replica) -> None:
        if not replica.is_away:
            self._engines.close(replica)
            self._tasks.start(self._await_home(replica))

    async def _await_home(self, replica: Replica) -> None:
        try:
            reply = await self._call(replica, "wait_serving")
        except RayActorError as error:
            reply = death_of(error, replica.rank)
        replica.is_away = False
        if isinstance(reply, Failure) and replica.failure is None:
            self._fail(replica, worker_error(self.workers.role, "wait_serving", [reply]))
        elif replica.failure is None:
            self._engines.reopen(replica)
        else:
            self._engines.retry_choice()

    def _lost(self, rank: int, error: RollError) -> None:
        """Handle the loss of an engine beyond what is done for all."""

    async def _await_return(self, replica: Replica) -> None:
        """Asks now and then whether somebody has brought the engine back."""
        while True:
            await asyncio.sleep(_RETURN_POLL_S)
            assert replica.failure is not None
            if (lost := self._unrecoverable(replica.rank, replica.failure)) is not None:
                replica.failure, replica.is_given_up = lost, True
                self._engines.retry_choice()
                return
            try:
                reply = await self._call(replica, "wait_serving")
            except RayActorError:
                continue
            if not isinstance(reply, Failure):
                replica.failure = None
                self._engines.reopen(replica)
                return

    def _unrecoverable(self, rank: int, error: RollError) -> RollError | None:
        """Why nobody will bring the engine back that failed with `error`; None where somebody may."""
        return None


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The first that fails ends the others."""
    tasks = [start(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
