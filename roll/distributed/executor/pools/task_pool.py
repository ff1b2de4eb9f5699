"""A pool of single-threaded workers for calls that may hang or crash, such as rewards."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from roll.configs.plan.layout import RolePlace
from roll.distributed.executor.pools.job import packed
from roll.distributed.executor.processes.cleaner import kill_marked
from roll.distributed.executor.processes.cluster import Calls, actor_options, death_of
from roll.distributed.executor.processes.host import PoolHost
from roll.distributed.executor.processes.resource_manager import (
    AssignedSlot,
    ResourceManager,
    devices_of,
    rank_environment,
)
from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.distributed.executor.usage import WorkerUsage
from roll.distributed.strategy.base import State
from roll.errors import WorkerError, describe
from roll.utils.background import BackgroundTasks
from roll.utils.imports import script_code
from roll.utils.worker_usage import IDLE, Meter, TraceOptions

logger = logging.getLogger(__name__)

_MARK = "ROLL_POOL_WORKER"
_GRACE_S = 1.0  # beyond a call's own limit, for the way there and back
_MAX_BATCH = 256


class _Replies:
    """Replies of calls that were made together. They share one future, since a future costs more than a quick call."""

    def __init__(self, count: int):
        self._loop = asyncio.get_running_loop()
        self.all: asyncio.Future[list[Any]] = self._loop.create_future()
        self._values: list[Any] = [None] * count
        self._num_open = count
        if not count:
            self.all.set_result([])

    def settle(self, place: int, reply: Any) -> None:
        self._values[place] = reply
        self._num_open -= 1
        if not self._num_open:  # the caller goes on a turn later: the worker's next batch is on its way first
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if not self.all.done():  # else its caller gave up
            self.all.set_result(self._values)


@dataclass
class _Call:
    method: str
    arguments: tuple[Any, ...]
    timeout_s: float
    replies: _Replies
    place: int  # among them
    alone: bool = False  # suspected of having stopped a worker: runs in a batch of its own


@dataclass
class _Worker:
    slot: AssignedSlot
    handle: Any
    ready: ray.ObjectRef | None  # None once it was seen to be ready
    mark: str  # in the environment of what it starts
    meter: Meter
    is_busy: bool = False


class TaskPool:
    """`await pool.call(...)` on one event loop. Calls wait in one queue; a free worker takes its share of it at once.

    A worker that exceeds a call's time limit, or dies, is replaced; on this host, what it started ends with it. The
    open calls of its batch run again one by one, so a call may run twice. Workers on devices have `offload_states` and
    `load_states`, and all their states once they are constructed."""

    def __init__(
        self,
        role: str,
        resources: ResourceManager,
        place: RolePlace,
        worker_class: str,
        arguments: tuple[Any, ...] = (),
        system_envs: Mapping[str, str] | None = None,
    ):
        self.role = role
        self._resources = resources
        self._worker_class, self._arguments = worker_class, arguments
        self._system_envs = system_envs or {}
        self._queue: deque[_Call] = deque()
        self._wake_up_is_due = False
        self._tasks = BackgroundTasks()
        self._workers = [self._start(slot) for slot in resources.slots(place)]
        self.num_restarts = 0

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def devices(self) -> frozenset[int]:
        return devices_of(worker.slot for worker in self._workers)

    @property
    def ready(self) -> Calls:
        return Calls(self.role, "start", {w.slot.rank: w.ready for w in self._workers if w.ready is not None})

    @property
    def parts(self) -> tuple[frozenset[int]]:
        """One: whoever is free takes a call."""
        return (self.devices,)

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._call_all("offload_states", states)

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._call_all("load_states", states)

    def wait_ready(self) -> None:
        self.ready.result()
        for worker in self._workers:
            worker.ready = None
        logger.info("%s: processes are up (%d)", self.role, len(self._workers))

    async def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Runs `method` of some worker. TimeoutError when it takes longer, WorkerError when it raises or dies."""
        (reply,) = await self.call_each(method, [arguments], timeout_s)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def call_each(
        self, method: str, arguments: Sequence[tuple[Any, ...]], timeout_s: float
    ) -> list[Any | BaseException]:
        """A `call` for each entry of `arguments`, at a fraction of the cost; where it would raise, the list holds
        what."""
        replies = _Replies(len(arguments))
        self._queue.extend(_Call(method, each, timeout_s, replies, place) for place, each in enumerate(arguments))
        self._wake_up_soon()
        return await replies.all

    def _call_all(self, method: str, *arguments: Any) -> Calls:
        """Calls a method of every worker while no other call is open. Fails if one has died since its last call."""
        refs = {worker.slot.rank: worker.handle.call.remote(method, *arguments) for worker in self._workers}
        return Calls(self.role, method, refs)

    def usage(self, request: TraceOptions) -> list[WorkerUsage]:
        """Usage of each worker, as the driver sees it: busy from when it gets a batch until it replies."""
        workers = self._workers
        return [WorkerUsage(w.slot.rank, tuple(w.slot.devices), w.meter.take(request.trace)) for w in workers]

    def kill(self) -> None:
        for worker in self._workers:
            ray.kill(worker.handle, no_restart=True)

    def _wake_up_soon(self) -> None:
        """Wakes up at the end of this tick of the event loop, so that calls made together are distributed together."""
        if not self._wake_up_is_due:
            self._wake_up_is_due = True
            asyncio.get_running_loop().call_soon(self._wake_up)

    def _wake_up(self) -> None:
        self._wake_up_is_due = False
        for worker in self._workers:
            if self._queue and not worker.is_busy:
                worker.is_busy = True
                self._tasks.start(self._serve(worker, self._next_batch()))

    def _next_batch(self) -> list[_Call]:
        size = min(_MAX_BATCH, -(-len(self._queue) // len(self._workers)))
        batch = [self._queue.popleft()]
        while self._queue and len(batch) < size and not batch[0].alone and not self._queue[0].alone:
            batch.append(self._queue.popleft())
        return batch

    async def _serve(self, worker: _Worker, batch: list[_Call]) -> None:
        """Settles every call of the batch, or puts it back into the line, whatever goes wrong."""
        open_calls = deque(call for call in batch if not call.replies.all.done())
        worker.meter.go(batch[0].method)
        try:
            await self._run(worker, open_calls)
        except TimeoutError:
            why = f"{open_calls[0].method} took longer than {open_calls[0].timeout_s:g} s"
            self._blame(open_calls, TimeoutError(f"{self.role}: {why}"))
            self._replace(worker, why)
        except RayActorError as error:
            method = open_calls[0].method
            self._blame(open_calls, worker_error(self.role, method, [death_of(error, worker.slot.rank)]))
            self._replace(worker, f"its process died in {method}")
        except WorkerError as error:  # it cannot be constructed
            for call in open_calls:
                call.replies.settle(call.place, error)
        except Exception as error:  # what does not travel: arguments, or a reply
            text = describe(error.cause if isinstance(error, RayTaskError) else error)
            self._blame(open_calls, WorkerError(f"{self.role}: {open_calls[0].method} failed: {text}"))
        except asyncio.CancelledError:  # the loop is being closed
            for call in open_calls:
                call.replies.all.cancel()
            raise
        finally:
            worker.meter.go(IDLE)
            worker.is_busy = False
            if self._queue:  # before those who were answered go on: meanwhile the worker is at it
                self._wake_up()

    async def _run(self, worker: _Worker, open_calls: deque[_Call]) -> None:
        """Removes calls from `open_calls` as they are answered."""
        if not open_calls:
            return
        if worker.ready is not None:
            failure = await worker.ready
            if isinstance(failure, Failure):
                raise worker_error(self.role, "start", [failure])
            worker.ready = None
        calls: Any = [(call.method, call.arguments) for call in open_calls]
        if not any(isinstance(argument, ray.ObjectRef) for _, arguments in calls for argument in arguments):
            calls = packed(calls)
        stream = worker.handle.run_batch.options(num_returns="streaming").remote(calls)
        while open_calls:
            replies = await asyncio.wait_for(_next_reply(stream), open_calls[0].timeout_s + _GRACE_S)
            for reply in replies:
                call = open_calls.popleft()
                if isinstance(reply, Failure):
                    reply = worker_error(self.role, call.method, [reply])
                call.replies.settle(call.place, reply)

    def _blame(self, open_calls: deque[_Call], error: Exception) -> None:
        if len(open_calls) == 1:
            open_calls[0].replies.settle(open_calls[0].place, error)
            return
        for call in reversed(open_calls):
            call.alone = True
            self._queue.appendleft(call)

    def _replace(self, worker: _Worker, why: str) -> None:
        logger.warning("%s rank %d is replaced by a new worker: %s", self.role, worker.slot.rank, why)
        ray.kill(worker.handle, no_restart=True)
        asyncio.get_running_loop().run_in_executor(None, kill_marked, _MARK, worker.mark)
        fresh = self._start(worker.slot)
        worker.handle, worker.ready, worker.mark = fresh.handle, fresh.ready, fresh.mark
        self.num_restarts += 1

    def _start(self, slot: AssignedSlot) -> _Worker:
        options = actor_options(self.role, self._resources, slot, self._system_envs)
        mark = uuid.uuid4().hex
        environment = rank_environment([slot], slot, is_distributed=False) | {_MARK: mark}
        handle = ray.remote(PoolHost).options(**options).remote(slot.rank, environment, script_code())
        build: Any = handle.build  # Ray gives it `remote`
        ready = build.remote(self._worker_class, self._arguments, 0)
        return _Worker(slot, handle, ready, mark, Meter(self.role, f"rank {slot.rank}"))


async def _next_reply(stream: Any) -> list[Any]:
    return await (await anext(stream))
