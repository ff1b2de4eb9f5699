"""Messages between a pool of jobs and its workers."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll.errors import WorkerError


class FatalJobError(WorkerError):
    """One worker after the other died of a job, or fell silent over it; the last one ran nothing else."""


@dataclass(frozen=True)
class Job:
    """One piece of work. After `limit_s`, and again and again, its worker has to give a sign of life; how long the work
    may take is the worker's own affair. One that `is_first` waits for nothing but others that are."""

    job_id: str
    work: Any
    limit_s: float
    is_first: bool = False


@dataclass(frozen=True)
class FinishedJobs:
    """Results that a worker returns, by job id, with a text in place of a result if the worker itself failed at it.
    `wants_rest`: it holds something that it cannot free (threads that hang), and should be replaced when it is idle.
    `counts`: what happened since the last time, to be added up over all workers."""

    results: tuple[tuple[str, Any], ...]
    failures: tuple[tuple[str, str], ...] = ()
    wants_rest: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


class JobWorker(Protocol):
    """Object that runs in a worker process. Its methods are called on one event loop."""

    def submit(self, jobs: list[Job]) -> None: ...

    async def take_apart(self) -> tuple[FinishedJobs, Any, Any]:
        """Return finished jobs, and two values that stay in the object store, which results may refer to."""
        ...

    def cancel(self, job_ids: list[str]) -> None: ...

    def heartbeat(self) -> None:
        """Says no more than that its event loop comes by."""
        ...


# Messages of many small objects.


class _Packed:
    """Pickles as what makes the value of these bytes."""

    def __init__(self, data: bytes):
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


def packed(value: Any) -> Any:
    """Wrap a value so that it travels through a call of Ray as one pickle, several times faster than Ray's for hundreds
    of small arrays. Only for values of classes that both sides import, and that refer to nothing in the object
    store."""
    try:
        return _Packed(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:  # Ray's own pickler takes more, and tells of what it does not take
        return value
