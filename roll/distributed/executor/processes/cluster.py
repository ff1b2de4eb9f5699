"""The workers of one role."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError

from roll.distributed.executor.processes.host import AsyncHost, Host
from roll.distributed.executor.processes.resource_manager import (
    AssignedSlot,
    ResourceManager,
    devices_of,
    import_environment,
    rank_environment,
    role_environment,
)
from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.errors import WorkerError
from roll.utils.imports import code_folder, own_folders, script_code
from roll.utils.worker_usage import TraceOptions

if TYPE_CHECKING:
    from roll.distributed.strategy.base import State

logger = logging.getLogger(__name__)

_OTHER_FAILURES_WAIT_S = (
    1.0  # after the first failure: long enough for the death behind a broken connection to be reported
)
_MAX_CONCURRENCY = 10_000


@dataclass(frozen=True)
class WorkerSpec:
    """How a role's workers are made: the `arguments` of each rank go to `worker_class`, a dotted path."""

    worker_class: str
    arguments: Sequence[tuple[Any, ...]]  # per rank
    system_envs: Mapping[str, str]
    is_async: bool = False
    is_distributed: bool = False  # torch.distributed between the ranks
    timeout_s: float | None = None  # of every call
    max_restarts: int = 0  # of a process that died; whoever asks for it builds the new one


class Calls:
    """One call that runs on several workers."""

    def __init__(
        self,
        role: str,
        method: str,
        refs: Mapping[int, ray.ObjectRef],
        timeout_s: float | None = None,
        forgives: Callable[[Failure], bool] = lambda failure: False,
    ):
        """A failure that the caller `forgives` is a reply like another: None."""
        self.role, self.method, self.refs, self.timeout_s, self.forgives = role, method, refs, timeout_s, forgives

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """The replies by rank. On the first failure raises WorkerError, root cause first, and waits for nobody else."""
        return wait_all([self], timeout_s)[0]

    def raise_failures(self) -> None:
        """Raises WorkerError if a call has failed already; does not wait."""
        for reply in self.replies_so_far().values():
            if isinstance(reply, Failure):
                raise self.error(reply)

    def replies_so_far(self) -> dict[int, Any]:
        """Return the replies so far, by rank; a failure is a reply like another. Does not wait."""
        done, _ = ray.wait(list(self.refs.values()), num_returns=len(self.refs), timeout=0)
        return {rank: fetch(ref, rank) for rank, ref in self.refs.items() if ref in done}

    def error(self, first: Failure) -> WorkerError:
        """Return the error to raise when one rank has failed: waits a moment for the failures of others."""
        others = {ref: rank for rank, ref in self.refs.items() if rank != first.rank}
        failures = [first]
        if others and not first.died:
            done, _ = ray.wait(list(others), num_returns=len(others), timeout=_OTHER_FAILURES_WAIT_S)
            replies = [fetch(ref, others[ref]) for ref in done]
            failures += [reply for reply in replies if isinstance(reply, Failure)]
        return worker_error(self.role, self.method, failures)


def wait_all(
    calls: Sequence[Calls], timeout_s: float | None = None, on_done: Callable[[Calls], None] = lambda call: None
) -> list[list[Any]]:
    """The replies of several calls, by call and rank. The first failure of any ends the wait with WorkerError, and so
    does the time limit: `timeout_s`, or the shortest that one of the calls has of its own. `on_done` is told of each
    call that all its ranks have answered."""
    limits = [call.timeout_s for call in calls if call.timeout_s is not None]
    if timeout_s is None and limits:
        timeout_s = min(limits)
    place = {ref: (i, rank) for i, call in enumerate(calls) for rank, ref in call.refs.items()}
    replies: list[dict[int, Any]] = [{} for _ in calls]
    pending = list(place)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while pending:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, pending = ray.wait(pending, num_returns=1, timeout=remaining)
        if not done:
            running = sorted(
                {f"{calls[i].role} rank {rank}: {calls[i].method}" for i, rank in (place[ref] for ref in pending)}
            )
            raise WorkerError(
                f"no reply within {timeout_s:g} s from {', '.join(running)}. If it is only slow, raise rpc_timeout."
            )
        i, rank = place[done[0]]
        reply = fetch(done[0], rank)
        if isinstance(reply, Failure):
            if not calls[i].forgives(reply):
                raise calls[i].error(reply)
            reply = None
        replies[i][rank] = reply
        if len(replies[i]) == len(calls[i].refs):
            on_done(calls[i])
    return [[by_rank[rank] for rank in sorted(by_rank)] for by_rank in replies]


def fetch(ref: ray.ObjectRef, rank: int) -> Any:
    """The value behind a ready reference; a dead worker is a Failure like any other."""
    try:
        return ray.get(ref)
    except RayActorError as error:
        return death_of(error, rank)
    except RayError as error:
        return Failure.of(error, rank)


def death_of(error: RayActorError, rank: int) -> Failure:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit" in line.lower() or "killed" in line.lower() or "error" in line.lower()]
    return Failure(rank, " ".join(telling or lines)[:600], died=True)


def actor_options(
    role: str, resources: ResourceManager, slot: AssignedSlot, system_envs: Mapping[str, str]
) -> dict[str, Any]:
    """Ray's options for one worker: it asks for nothing, its devices are set by its environment."""
    environment = {**slot.host.variables, **role_environment(role, system_envs, slot)}
    environment |= import_environment(own_folders(), code_folder(), system_envs)
    return {
        "num_cpus": 0,
        "num_gpus": 0,
        "max_restarts": 0,
        "scheduling_strategy": resources.scheduling(slot),
        "runtime_env": {"env_vars": environment},
    }


class WorkerHandles:
    """The actors of a role, as others may call them, such as a sending rank."""

    def __init__(self, role: str, handles: Sequence[Any], timeout_s: float | None = None):
        self.role = role
        self.handles = tuple(handles)
        self.timeout_s = timeout_s

    def start(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Calls:
        refs = {i: self.handles[i].call.remote(method, *a) for i, a in arguments.items()}
        return Calls(self.role, method, refs, self.timeout_s)


class Cluster:
    """N workers of one role. Starts them on construction without waiting; `wait_ready` waits."""

    def __init__(self, role: str, resources: ResourceManager, slots: Sequence[AssignedSlot], spec: WorkerSpec):
        self.role = role
        self.slots = tuple(slots)
        self.spec = spec
        self.workers = WorkerHandles(role, self._start(resources, spec), spec.timeout_s)
        self.ready = self._build(spec)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def parts(self) -> tuple[frozenset[int]]:
        """One: the ranks compute together (`placement.Occupant`)."""
        return (devices_of(self.slots),)

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self.start_all("offload_states", states)

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self.start_all("load_states", states)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        self.ready.result(timeout_s)

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Runs `method` on every rank with the same arguments; ray.put large ones."""
        return self.start_all(method, *arguments).result()

    def call_ranks(self, method: str, per_rank: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self.start_ranks(method, per_rank).result()

    def start_all(self, method: str, *arguments: Any) -> Calls:
        return self.start_ranks(method, [arguments] * len(self))

    def start_ranks(self, method: str, per_rank: Sequence[tuple[Any, ...]]) -> Calls:
        if len(per_rank) != len(self):
            raise ValueError(f"{len(per_rank)} sets of arguments for {len(self)} ranks of {self.role}")
        return self.workers.start(method, dict(enumerate(per_rank)))

    def start_split(
        self, method: str, num_values: Sequence[int], per_rank: Sequence[tuple[Any, ...]]
    ) -> tuple[Calls, list[list[ray.ObjectRef]]]:
        """Starts a method that returns (summary, value, ...): the summaries as Calls, per rank references of values."""
        summaries, values = {}, []
        for rank, (handle, count, arguments) in enumerate(zip(self.workers.handles, num_values, per_rank, strict=True)):
            refs = handle.call_split.options(num_returns=1 + count).remote(method, count, *arguments)
            refs = refs if isinstance(refs, list) else [refs]
            summaries[rank] = refs[0]
            values.append(refs[1:])
        return Calls(self.role, method, summaries, self.workers.timeout_s), values

    def ask_usage(self, request: TraceOptions) -> dict[int, ray.ObjectRef]:
        """References of each rank's `usage`. A worker on an event loop measures its own."""
        if self.spec.is_async:
            return {rank: handle.call.remote("usage", request) for rank, handle in enumerate(self.workers.handles)}
        return {rank: handle.usage.remote(request) for rank, handle in enumerate(self.workers.handles)}

    def kill(self) -> None:
        for handle in self.workers.handles:
            ray.kill(handle, no_restart=True)

    def _start(self, resources: ResourceManager, spec: WorkerSpec) -> tuple[Any, ...]:
        actor = ray.remote(AsyncHost if spec.is_async else Host)
        more = {"max_concurrency": _MAX_CONCURRENCY} if spec.is_async else {}
        more["max_restarts"] = spec.max_restarts
        return tuple(
            actor.options(**{**actor_options(self.role, resources, slot, spec.system_envs), **more}).remote(
                slot.rank, rank_environment(self.slots, slot, spec.is_distributed), script_code()
            )
            for slot in self.slots
        )

    def _build(self, spec: WorkerSpec) -> Calls:
        port = self.workers.handles[0].free_port.remote() if spec.is_distributed else 0
        refs = {
            rank: handle.build.remote(spec.worker_class, arguments, port)
            for rank, (handle, arguments) in enumerate(zip(self.workers.handles, spec.arguments, strict=True))
        }
        return Calls(self.role, "start", refs, spec.timeout_s)
