"""A pool of workers with many long jobs in flight each: episodes in environments."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from roll.configs.plan.layout import RolePlace
from roll.distributed.executor.pools.job import FatalJobError, FinishedJobs, Job
from roll.distributed.executor.processes.cluster import actor_options, death_of, fetch
from roll.distributed.executor.processes.host import AsyncHost
from roll.distributed.executor.processes.resource_manager import AssignedSlot, ResourceManager
from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.errors import RollError, WorkerError, describe
from roll.platforms.table import CPU
from roll.utils.background import BackgroundTasks
from roll.utils.imports import script_code

logger = logging.getLogger(__name__)

_MAX_CONCURRENCY = 10_000
_SHARED_LIVES = 2  # so many workers may die under a job before it must run alone, to show whether it is to blame


@dataclass
class _Waiting:
    job: Job
    future: asyncio.Future[Any]
    deaths: int = 0  # of workers under it
    is_stopped: bool = False
    alarm: asyncio.TimerHandle | None = None


@dataclass
class _Worker:
    name: str
    slot: AssignedSlot
    handle: Any
    ready: ray.ObjectRef | None  # None once it was seen to be ready
    jobs: dict[str, _Waiting] = field(default_factory=dict)
    outbox: list[Job] = field(default_factory=list)
    exchange: asyncio.Task[None] | None = None
    wants_rest: bool = False

    @property
    def is_alone(self) -> bool:
        """True while it runs a job that must not take others down with it."""
        return any(waiting.deaths >= _SHARED_LIVES for waiting in self.jobs.values())


class JobPool:
    """`await pool.run(job)` on one event loop. A job goes to the worker with the fewest, at most `jobs_per_worker`
    each. Its result is what `placed` makes of the worker's own and the handles of the values that came with it.

    A worker that dies, or gives no sign of life when a job's limit is over, is replaced. Its jobs run again elsewhere;
    one that was there twice runs alone then, and is the one to blame if its worker dies again."""

    def __init__(
        self,
        role: str,
        resources: ResourceManager,
        place: RolePlace,
        worker_class: str,
        arguments_of: Callable[[str], tuple[Any, ...]],
        jobs_per_worker: int,
        system_envs: Mapping[str, str] | None = None,
        on_gone: Callable[[str], None] | None = None,
        placed: Callable[[Any, Sequence[object]], Any] = lambda result, handles: result,
    ):
        """`arguments_of(name)`: of a worker's constructor, the name unique in the run; `on_gone(name)`: it was
        ended."""
        self.role = role
        self.num_restarts = 0
        self.counts: Counter[str] = Counter()  # of all workers so far
        self._resources = resources
        self._worker_class, self._arguments_of = worker_class, arguments_of
        self._jobs_per_worker = jobs_per_worker
        self._system_envs = system_envs or {}
        self._on_gone = on_gone
        self._placed = placed
        self._queue: deque[_Waiting] = deque()
        self._num_started = 0
        self._is_closed = False
        self._tasks = BackgroundTasks()
        self._workers = [self._start(slot) for slot in resources.slots(place)]

    def __len__(self) -> int:
        return len(self._workers)

    def wait_ready(self) -> None:
        for worker in self._workers:
            if worker.ready is not None and isinstance(failure := fetch(worker.ready, worker.slot.rank), Failure):
                raise worker_error(self.role, "start", [failure])
            worker.ready = None
        logger.info("%s: processes are up (%d)", self.role, len(self._workers))

    async def run(self, job: Job) -> Any:
        """The job's result. WorkerError when the worker failed at it, FatalJobError when it died of it."""
        waiting = _Waiting(job, asyncio.get_running_loop().create_future())
        place = sum(1 for other in self._queue if other.job.is_first) if job.is_first else len(self._queue)
        self._queue.insert(place, waiting)
        self._dispatch()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._end(waiting)
            raise

    def stop(self, job_id: str) -> None:
        """Ends a job early: `run` returns what there is of it, None where none has begun it."""
        for jobs in (self._queue, *(worker.jobs.values() for worker in self._workers)):
            for waiting in list(jobs):
                if waiting.job.job_id == job_id:
                    self._end(waiting)

    def kill(self) -> None:
        self._is_closed = True
        for worker in self._workers:
            ray.kill(worker.handle, no_restart=True)

    # --- giving out

    def _dispatch(self) -> None:
        """Gives jobs to workers that have room. A job that runs alone waits for an empty worker."""
        held_back: list[_Waiting] = []
        while self._queue:
            waiting = self._queue.popleft()
            if waiting.future.done():
                continue
            worker = self._worker_for(waiting)
            if worker is None:
                held_back.append(waiting)
                if waiting.deaths < _SHARED_LIVES:
                    break
                continue
            self._assign(worker, waiting)
        self._queue.extendleft(reversed(held_back))

    def _worker_for(self, waiting: _Waiting) -> _Worker | None:
        alone = waiting.deaths >= _SHARED_LIVES
        room = 1 if alone else self._jobs_per_worker
        free = [w for w in self._workers if len(w.jobs) < room and not w.is_alone and not w.wants_rest]
        if not alone and any(other.deaths >= _SHARED_LIVES for other in self._queue):
            free = [w for w in free if w is not self._workers[0]]  # it runs empty for those that must run alone
        return min(free, key=lambda w: len(w.jobs), default=None)

    def _assign(self, worker: _Worker, waiting: _Waiting) -> None:
        job_id = waiting.job.job_id
        if job_id in worker.jobs:
            raise ValueError(f"job {job_id!r} is running already")
        worker.jobs[job_id] = waiting
        loop = asyncio.get_running_loop()
        waiting.alarm = loop.call_later(waiting.job.limit_s, self._not_answering, worker, waiting)
        worker.outbox.append(waiting.job)
        if worker.exchange is None or worker.exchange.done():
            worker.exchange = self._tasks.start(self._exchange(worker))
        elif len(worker.outbox) == 1:
            loop.call_soon(self._submit, worker)

    def _submit(self, worker: _Worker) -> None:
        jobs, worker.outbox = worker.outbox, []
        if jobs:
            self._tasks.start(self._hand_in(worker, jobs))

    async def _hand_in(self, worker: _Worker, jobs: list[Job]) -> None:
        try:
            reply = await worker.handle.call.remote("submit", jobs)
        except RayActorError:
            return  # `take` says so, too
        except Exception as failure:  # they could not even be sent
            error = WorkerError(f"{self.role} rank {worker.slot.rank} failed in submit: {describe(failure)}")
        else:
            if not isinstance(reply, Failure):
                return
            error = worker_error(self.role, "submit", [reply])
        for job in jobs:
            if (waiting := worker.jobs.get(job.job_id)) is not None:
                self._close(worker, waiting, error)

    # --- taking back

    async def _exchange(self, worker: _Worker) -> None:
        """Hands in jobs and takes results as long as the worker has jobs."""
        try:
            if worker.ready is not None:
                failure = await worker.ready
                if isinstance(failure, Failure):
                    raise worker_error(self.role, "start", [failure])
                worker.ready = None
            self._submit(worker)
            while worker.jobs:
                first, *handles = worker.handle.call_split.options(num_returns=3).remote("take_apart", 2)
                reply = await first
                if isinstance(reply, Failure):
                    raise worker_error(self.role, "take_apart", [reply])
                self._settle(worker, reply, handles)
        except RayActorError as error:
            if not self._is_closed:
                self._lost(worker, worker_error(self.role, "run", [death_of(error, worker.slot.rank)]))
        except Exception as error:  # it cannot be constructed, or does not work at all
            logger.debug("%s rank %d", self.role, worker.slot.rank, exc_info=True)
            cause = error if isinstance(error, RollError) else WorkerError(f"{self.role}: {describe(error)}")
            for waiting in list(worker.jobs.values()):
                self._close(worker, waiting, cause)

    def _settle(self, worker: _Worker, finished: FinishedJobs, handles: Sequence[object]) -> None:
        for job_id, result in finished.results:
            if (waiting := worker.jobs.get(job_id)) is not None:
                self._close(worker, waiting, self._placed(result, handles))
        for job_id, text in finished.failures:
            if (waiting := worker.jobs.get(job_id)) is not None:
                self._close(worker, waiting, WorkerError(f"{self.role} rank {worker.slot.rank}: {text}"))
        self.counts.update(finished.counts)
        worker.wants_rest = worker.wants_rest or finished.wants_rest
        if worker.wants_rest and not worker.jobs:
            self._replace(worker)
        self._dispatch()

    def _close(self, worker: _Worker, waiting: _Waiting, result: Any) -> None:
        worker.jobs.pop(waiting.job.job_id, None)
        if waiting.alarm is not None:
            waiting.alarm.cancel()
        _settle(waiting, result)

    def _end(self, waiting: _Waiting) -> None:
        waiting.is_stopped = True
        for worker in self._workers:
            if worker.jobs.get(waiting.job.job_id) is waiting:
                if waiting.job in worker.outbox:
                    worker.outbox.remove(waiting.job)
                    self._close(worker, waiting, None)
                else:  # its place is free when the worker says that it has ended
                    asyncio.get_running_loop().call_soon(self._cancel, worker, waiting.job.job_id)
        if waiting in self._queue:
            self._queue.remove(waiting)
            _settle(waiting, None)

    def _cancel(self, worker: _Worker, job_id: str) -> None:
        """Cancels a job that has left the outbox. The worker receives the job before the cancellation."""
        worker.handle.call.remote("cancel", [job_id])

    # --- workers that are gone

    def _not_answering(self, worker: _Worker, waiting: _Waiting) -> None:
        if worker.jobs.get(waiting.job.job_id) is not waiting:
            return
        if worker.ready is not None:  # still under construction: the job has not begun
            self._look_later(worker, waiting)
        else:
            self._tasks.start(self._look_after(worker, waiting))

    def _look_later(self, worker: _Worker, waiting: _Waiting) -> None:
        loop = asyncio.get_running_loop()
        waiting.alarm = loop.call_later(waiting.job.limit_s, self._not_answering, worker, waiting)

    async def _look_after(self, worker: _Worker, waiting: _Waiting) -> None:
        """A worker that comes by keeps its own limits: the job may wait for engines that stand still."""
        limit = waiting.job.limit_s
        try:
            async with asyncio.timeout(limit):
                await worker.handle.call.remote("heartbeat")
        except RayActorError:
            return  # `take` says so, too
        except TimeoutError:
            if worker.jobs.get(waiting.job.job_id) is waiting:
                self._lost(worker, WorkerError(f"{self.role} rank {worker.slot.rank} did not reply for {limit:g} s"))
            return
        if worker.jobs.get(waiting.job.job_id) is waiting:
            self._look_later(worker, waiting)

    def _lost(self, worker: _Worker, error: WorkerError) -> None:
        """The worker is dead or as good as dead: its jobs go back into the line."""
        jobs = list(worker.jobs.values())
        worker.jobs.clear()
        for waiting in reversed(jobs):
            if waiting.alarm is not None:
                waiting.alarm.cancel()
            waiting.deaths += 1
            if waiting.deaths > _SHARED_LIVES and len(jobs) == 1:
                fatal = FatalJobError(str(error))
                fatal.__cause__ = error
                self._close(worker, waiting, fatal)
            elif waiting.is_stopped:
                _settle(waiting, None)
            else:
                self._queue.appendleft(waiting)
        self._replace(worker)
        self._dispatch()

    def _replace(self, worker: _Worker) -> None:
        logger.warning("%s rank %d is replaced by a new worker", self.role, worker.slot.rank)
        if worker.exchange is not None and worker.exchange is not asyncio.current_task():
            worker.exchange.cancel()
        ray.kill(worker.handle, no_restart=True)
        if self._on_gone is not None:
            self._on_gone(worker.name)
        fresh = self._start(worker.slot)
        self._workers[self._workers.index(worker)] = fresh
        self.num_restarts += 1

    def _start(self, slot: AssignedSlot) -> _Worker:
        name = f"{self.role}-{self._num_started}"
        self._num_started += 1
        options = actor_options(self.role, self._resources, slot, self._system_envs)
        actor = ray.remote(AsyncHost).options(**options, max_concurrency=_MAX_CONCURRENCY)
        handle = actor.remote(slot.rank, CPU.visible(()), script_code())
        build: Any = handle.build  # Ray gives it `remote`
        return _Worker(name, slot, handle, build.remote(self._worker_class, self._arguments_of(name), 0))


def _settle(waiting: _Waiting, result: Any) -> None:
    if waiting.future.done():
        return
    if isinstance(result, Exception):
        waiting.future.set_exception(result)
    else:
        waiting.future.set_result(result)
