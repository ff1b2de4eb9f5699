"""How much memory a worker's process has taken."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roll.errors import WorkerError
from roll.platforms.table import ACCELERATORS
from roll.utils.imports import traced
from roll.utils.worker_usage import TraceOptions, Usage

_KB = 1024
_LOOK_EVERY_S = 30.0
_MOST_ALLOCATIONS = 100_000  # in the history of a snapshot


class MemoryWatch:
    """The memory of this process and of those that it started, whom it looks for now and then."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic):
        self._name, self._clock = name, clock
        self._family: list[str] = []
        self._looked = -math.inf

    def add_to(self, usage: Usage, query: TraceOptions) -> Usage:
        """The usage with the memory. Where `query` asks for snapshots, the allocator's history is recorded from now on,
        and what it holds is written to `<name>.pickle`, in place of the one before. A process without a context on a
        GPU makes none: neither the driver, nor one whose engine has processes of its own."""
        usage, device = replace(usage, host_bytes=self.host_peak()), _device_in_use()
        if device is None:
            return usage
        if query.snapshots:
            device.memory._dump_snapshot(str(Path(query.snapshots, f"{self._name}.pickle")))
            device.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)
        peak = int(device.max_memory_allocated())
        device.reset_peak_memory_stats()
        return replace(usage, device_bytes=peak, device_name=str(device.get_device_name()))

    def host_peak(self) -> int:
        """The largest resident set so far of this process, and of those that it started and that still run, in bytes:
        an upper bound where their peaks lie apart. 0 where the kernel does not tell."""
        if self._clock() - self._looked >= _LOOK_EVERY_S:
            self._family, self._looked = _family("self"), self._clock()
        return sum(_resident_peak(Path("/proc", pid)) for pid in self._family)


def _family(process: str) -> list[str]:
    pids = [process]
    for parent in pids:  # grows on the way
        for listed in Path("/proc", parent, "task").glob("*/children"):
            try:
                pids += listed.read_text().split()
            except OSError:  # it has ended meanwhile
                continue
    return pids


def _resident_peak(place: Path) -> int:
    try:
        lines = (place / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KB for line in lines if line.startswith("VmHWM:")), 0)


def _device_in_use() -> Any:
    """torch's module of the accelerator on which this process has a context; None where it has none, or no torch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    modules = [getattr(torch, platform.device_type, None) for platform in ACCELERATORS]
    return next((module for module in modules if module is not None and module.is_initialized()), None)


# What a worker reports when it fails, and how several failures become one error with the root cause first.

# What the other ranks say when one of them is gone: consequences, not causes.
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "distbackenderror",
    "distnetworkerror",
    "socket timeout",
    "ccl communicator was aborted",  # of NCCL, RCCL and HCCL
)


@dataclass(frozen=True)
class Failure:
    """One failed call, as plain text: an exception may hold what does not travel between processes."""

    rank: int
    message: str
    details: str = ""
    died: bool = False
    elsewhere: bool = False  # what failed is another worker, which the message names

    @staticmethod
    def of(error: BaseException, rank: int) -> Failure:
        details = "".join(traceback.format_exception(error))  # bears exceptions that have no text
        if isinstance(error, WorkerError):
            return Failure(rank, str(error), details, elsewhere=True)
        return Failure(rank, traced(error), details)

    @property
    def is_consequence(self) -> bool:
        text = self.message.lower()
        return not self.died and any(sign in text for sign in _CONSEQUENCES)


def worker_error(role: str, method: str, failures: Sequence[Failure]) -> WorkerError:
    """One error for the failures of one call, root cause first: a dead worker, what is no consequence, then rank."""
    ordered = sorted(failures, key=lambda f: (not f.died, f.is_consequence, not f.elsewhere, f.rank))
    first = ordered[0]
    what = "died" if first.died else "failed"
    text = first.message if first.elsewhere else f"{role} rank {first.rank} {what} in {method}: {first.message}"
    if len(ordered) > 1:
        text += "; then " + "; ".join(f"rank {f.rank}: {f.message.splitlines()[0][:200]}" for f in ordered[1:4])
    error = WorkerError(text)
    if first.details:
        error.add_note(f"In {role} rank {first.rank}:\n{first.details}")
    return error
