"""Brings rollout engines back that died, on the driver: while the others go on, a new process takes the old one's
place. It serves again after the next weight update, or, where weights never change, at once. If all died, the driver
makes that update while it waits for groups."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from roll.distributed.executor.placement import Claim
from roll.distributed.executor.processes.cluster import Calls, Cluster, death_of
from roll.distributed.executor.processes.resource_manager import devices_of
from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS, EngineClient
from roll.distributed.strategy.base import State
from roll.errors import RollError, WorkerError, describe

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3  # of one engine in a run
_NEW_PROCESS_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 10.0
_POLL_S = 0.2


@dataclass(frozen=True)
class RecoverySettings:
    """How the worker of a rank is built anew, whether it waits for weights then, and the limit of its setup."""

    worker_class: str
    arguments: Sequence[tuple[Any, ...]]  # per rank
    waits_for_weights: bool = True
    setup_limit_s: float = 1800.0


class EngineRecovery:
    """Restarts engines of a cluster whose processes Ray may restart. Its methods are called from any thread."""

    def __init__(self, cluster: Cluster, settings: RecoverySettings):
        self.num_restarts = 0
        self._cluster, self._settings = cluster, settings
        self._pool = ThreadPoolExecutor(max(1, len(cluster)), "engine recovery")
        self._restarts: dict[int, Future[None]] = {}
        self._num_deaths: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="engine watch", daemon=True)

    def watch(self) -> None:
        """Starts to restart every engine as soon as it is gone. Called once all engines are set up."""
        self._watcher.start()

    def lost(self, rank: int) -> bool:
        """Begins to restart this engine, unless that is under way or the run ends. True if it did."""
        with self._lock:
            if rank in self._restarts or self._is_closing.is_set():
                return False
            self._count_death(rank)
            self._restarts[rank] = self._pool.submit(self._restart, rank)
            return True

    def in_flight(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._restarts)

    def notice(self) -> None:
        """Begins to restart the engines that died unnoticed: this process saw no request of its own fail."""
        for rank, cause in sorted(self._deaths().items()):
            if self.lost(rank):
                logger.warning("%s rank %d is restarted: %s", self._cluster.role, rank, cause)

    def replaces(self, failure: Failure) -> bool:
        """True if an engine failed a call because it is dead, and somebody brings it back."""
        self.notice()
        return failure.rank in self.in_flight()

    def failure(self, rank: int) -> BaseException | None:
        """Why this engine could not be brought back; None where it was, or may be yet."""
        with self._lock:
            restart = self._restarts.get(rank)
        return restart.exception() if restart is not None and restart.done() and not restart.cancelled() else None

    def serving(self) -> list[int]:
        gone = self.in_flight()
        return [rank for rank in range(len(self._cluster)) if rank not in gone]

    def notify(self, method: str, *arguments: Any) -> None:
        """Calls `method`, maybe twice, on every engine that serves. One that died, or dies of it, is restarted."""
        while True:
            ranks = self.serving()
            try:
                self._cluster.workers.start(method, dict.fromkeys(ranks, arguments)).result()
                return
            except WorkerError:
                self.notice()
                if self.serving() == ranks:
                    raise

    def all_wait(self) -> bool:
        """True if every engine died, and each new one is ready for weights, or cannot be brought back."""
        with self._lock:
            is_done = [restart.done() for restart in self._restarts.values()]
        return len(is_done) == len(self._cluster) and all(is_done)

    def finish(self) -> bool:
        """Looks for engines that died unnoticed, and waits until every restarted one is ready for weights. True if
        there are restarted ones. Raises WorkerError if an engine cannot be brought back."""
        self.notice()
        with self._lock:
            restarts = dict(self._restarts)
        for restart in restarts.values():
            restart.result()
        with self._lock:
            for rank in restarts:
                del self._restarts[rank]
        return bool(restarts)

    def close(self) -> None:
        """Begins no restart any more. `join` returns when none is under way: soon after the engines were killed."""
        self._is_closing.set()

    def join(self) -> None:
        if self._watcher.ident is not None:
            self._watcher.join()
        self._pool.shutdown(cancel_futures=True)

    def _watch(self) -> None:
        try:
            self._restart_as_they_go()
        except Exception:  # Ray is gone, which others tell
            if not self._is_closing.is_set():
                logger.warning("%s: engines are no longer monitored", self._cluster.role, exc_info=True)

    def _restart_as_they_go(self) -> None:
        """A call that ends with its engine is open to each."""
        calls: dict[ray.ObjectRef, int] = {}
        while not self._is_closing.is_set():
            for rank in set(self.serving()) - set(calls.values()):
                calls[self._cluster.workers.handles[rank].call.remote("wait_until_dead")] = rank
            ended, _ = ray.wait(list(calls), timeout=_POLL_S) if calls else ([], None)
            for call in ended:
                del calls[call]
            if ended:
                self.notice()
            elif not calls:
                self._is_closing.wait(_POLL_S)

    def _deaths(self) -> dict[int, str]:
        """Return the ranks of engines that should be alive but are not, with the cause. An engine may be gone whose
        process is there, which knows the cause best."""
        handles, ranks = self._cluster.workers.handles, self.serving()
        built = {rank: handles[rank].is_built.remote() for rank in ranks}
        replies = {rank: _answer(ref) for rank, ref in built.items()}
        health = {rank: handles[rank].call.remote("check_health") for rank, answer in replies.items() if answer is True}
        replies |= {rank: _answer(ref) for rank, ref in health.items()}
        return {rank: _cause(answer, rank) for rank, answer in replies.items() if answer is not None}

    def _restart(self, rank: int) -> None:
        """A new process that dies while it is set up is replaced in its turn, for as long as Ray starts one."""
        started, settings = time.monotonic(), self._settings
        while True:
            self._wait_for_new_process(rank)
            handle = self._cluster.workers.handles[rank]
            try:
                self._reply(rank, "start", handle.build.remote(settings.worker_class, settings.arguments[rank], 0))
                self._reply(rank, "setup", handle.call.remote("setup"))
                break
            except RayActorError as error:
                with self._lock:
                    self._count_death(rank)
                logger.warning("%s rank %d died again: %s", self._cluster.role, rank, death_of(error, rank).message)
        when = "after the next weight update" if settings.waits_for_weights else "from now on"
        took = time.monotonic() - started
        logger.info("%s rank %d was restarted in %.1f s; it takes part again %s", self._cluster.role, rank, took, when)
        if not settings.waits_for_weights:
            with self._lock:
                self._restarts.pop(rank, None)

    def _count_death(self, rank: int) -> None:
        self.num_restarts += 1
        self._num_deaths[rank] += 1

    def _wait_for_new_process(self, rank: int) -> None:
        """Ray starts one as soon as the old one has ended; one that only lost its engine is ended here."""
        handle = self._cluster.workers.handles[rank]
        deadline = time.monotonic() + _NEW_PROCESS_LIMIT_S
        was_killed = False
        while not self._is_closing.is_set():
            error: Exception
            try:
                if not ray.get(handle.is_built.remote(), timeout=_ANSWER_LIMIT_S):
                    return
                error = WorkerError("the old process did not end")
                if not was_killed:
                    ray.kill(handle, no_restart=False)
                    was_killed = True
            except (RayActorError, GetTimeoutError) as failure:
                error = failure
            is_last = isinstance(error, RayActorError) and self._num_deaths[rank] > MAX_RESTARTS  # Ray starts no more
            if is_last or time.monotonic() > deadline:
                cause = death_of(error, rank) if isinstance(error, RayActorError) else Failure.of(error, rank)
                raise worker_error(self._cluster.role, f"restart (the limit per engine is {MAX_RESTARTS})", [cause])
            self._is_closing.wait(_POLL_S)
        raise WorkerError(f"{self._cluster.role} rank {rank} is not restarted, since the run ends")

    def _reply(self, rank: int, method: str, ref: ray.ObjectRef) -> None:
        """Raises RayActorError where the process died of it."""
        try:
            reply = ray.get(ref, timeout=self._settings.setup_limit_s)
        except GetTimeoutError as error:
            reply = Failure.of(error, rank)
        if isinstance(reply, Failure):
            raise worker_error(self._cluster.role, method, [reply])


def _answer(ref: ray.ObjectRef) -> Any:
    try:
        return ray.get(ref, timeout=_ANSWER_LIMIT_S)
    except (RayActorError, GetTimeoutError) as error:
        return error


def _cause(answer: Any, rank: int) -> str:
    if isinstance(answer, Failure):
        return answer.message
    if isinstance(answer, RayActorError):
        return death_of(answer, rank).message
    if isinstance(answer, GetTimeoutError):
        return f"no reply within {_ANSWER_LIMIT_S:g} s"
    return "its process has ended, and a new one replaced it"


# The rollout engines, as the driver and the clients in other processes reach them.


class GenerateCluster(EngineClient):
    """The workers of a role that samples. `generate` is called on one event loop; the other methods from the driver's
    thread. With `recovery`, engines that die are restarted, and only `heal` waits for them; without, the others go on
    alone. If it `waits`, requests also wait while all engines are dead: somebody brings the new ones their weights
    meanwhile."""

    stores_answers = True
    takes_cut = True

    def __init__(
        self,
        cluster: Cluster,
        recovery: EngineRecovery | None = None,
        room: int | None = None,
        leaves_whole: bool = False,
        waits: bool = False,
    ):
        """`room`: answers that an engine works on at once. With `leaves_whole` all leave their devices where one has
        to."""
        super().__init__(cluster.workers, room=room, waits=waits)
        self.cluster = cluster
        self.recovery = recovery
        self._room = room
        ranks = range(len(cluster))
        self._ranks_of_part = [list(ranks)] if leaves_whole else [[rank] for rank in ranks]

    @property
    def role(self) -> str:
        return self.cluster.role

    @property
    def parts(self) -> list[frozenset[int]]:
        """Engines come and go one by one."""
        slots = self.cluster.slots
        return [devices_of(slots[rank] for rank in ranks) for ranks in self._ranks_of_part]

    @property
    def ready(self) -> Calls:
        return self.cluster.ready

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("offload_states", states, parts)

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("load_states", states, parts)

    def hand_over(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("hand_over", states, parts)

    @property
    def everything(self) -> Claim:
        return Claim(self)

    @property
    def weights(self) -> Claim:
        return Claim(self, frozenset({State.WEIGHTS}))

    def client(self, name: str = "") -> EngineClient:
        """Another way to the engines, to be sent to another process. Each needs a name of its own."""
        return EngineClient(self.cluster.workers, name, self._room, self.waits)

    def forget_client(self, name: str) -> None:
        """The process of this client is gone: the engines drop its requests. Does not wait."""
        self.cluster.workers.start("forget_client", dict.fromkeys(range(len(self.cluster)), (name,)))

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """These requests (None: all) end early, with what was sampled."""
        self._notify("abort", request_ids)

    def heal(self) -> bool:
        """Waits before a weight update until all engines can take part in it. True if some were restarted."""
        return self.recovery is not None and self.recovery.finish()

    @property
    def waits_for_weights(self) -> bool:
        """True if some engine died, and serves again after the next weight update only."""
        return self.recovery is not None and bool(self.recovery.in_flight())

    @property
    def all_wait_for_weights(self) -> bool:
        """True if all engines died, and requests wait until the new ones have weights."""
        return self.recovery is not None and self.waits and self.recovery.all_wait()

    def metrics(self) -> dict[str, float]:
        """Return metrics of restarted replicas so far; none for an engine that cannot be replaced."""
        if self.recovery is None:
            return {}
        return {
            "rollout/restarted_engines": float(self.recovery.num_restarts),
            RETRIED_REQUESTS: float(self.num_retries),
        }

    def _move(self, method: str, states: frozenset[State], parts: Sequence[int]) -> Calls:
        """An engine that is being restarted, also one that dies of it, comes back with all its states."""
        ranks, recovery = [rank for part in parts for rank in self._ranks_of_part[part]], self.recovery
        if recovery is None:
            return self.cluster.workers.start(method, dict.fromkeys(ranks, (states,)))
        recovery.notice()
        serving = {*recovery.serving()}
        calls = self.cluster.workers.start(method, {rank: (states,) for rank in ranks if rank in serving})
        calls.forgives = recovery.replaces
        return calls

    def _notify(self, method: str, *arguments: object) -> None:
        if self.recovery is None:
            self.cluster.call_all(method, *arguments)
        else:
            self.recovery.notify(method, *arguments)

    def _lost(self, rank: int, error: RollError) -> None:
        super()._lost(rank, error)
        if self.recovery is not None:
            self.recovery.lost(rank)

    def _unrecoverable(self, rank: int, error: RollError) -> RollError | None:
        if self.recovery is None:
            return error
        failure = self.recovery.failure(rank)
        return failure if isinstance(failure, RollError) or failure is None else WorkerError(describe(failure))

    def start_setup(self) -> Calls:
        return self.cluster.start_all("setup")


class ApartCluster(GenerateCluster):
    """Engines apart from the run's rows and weights, as a judge's: an engine that was restarted serves at once."""

    stores_answers = False
    takes_cut = False
