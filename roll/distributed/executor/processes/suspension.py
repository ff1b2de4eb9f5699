"""Workers that are suspended (SIGSTOP): nothing fails, and every call to one waits. They are ended, and then it is as
if they had died."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from roll.distributed.executor.processes.environment import RUN_ID, RUN_MARK

logger = logging.getLogger(__name__)

_SUSPENDED = "T"  # not "t": that is a debugger's
_LONGEST_INTERVAL_S = 5.0
_LOOKS_PER_LIMIT = 4


class SuspensionWatch:
    """A thread of the driver that looks at the state of this run's processes on its host, as the kernel knows it: a
    busy machine or a long call is never taken for a suspended worker. What is suspended for `limit_s` is killed.

    Time counts in looks: while the driver itself was suspended, as Slurm does with whole jobs, none passes."""

    def __init__(self, limit_s: float, own: Mapping[int, str]):
        """`own`: pids of further processes that nothing goes on without, with their names."""
        self._limit_s, self._own = limit_s, own
        self._interval_s = min(_LONGEST_INTERVAL_S, limit_s / _LOOKS_PER_LIMIT)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="suspension watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        seen: dict[int, float] = {}
        while not self._closed.wait(self._interval_s):
            suspended = suspended_processes(RUN_ID, self._own)
            seen = {pid: seen.get(pid, -self._interval_s) + self._interval_s for pid in suspended}
            for pid in [pid for pid, seconds in seen.items() if seconds >= self._limit_s]:
                logger.warning(
                    "%s (pid %d) has been suspended (SIGSTOP) for %g s (suspend_timeout): it is killed",
                    suspended[pid],
                    pid,
                    self._limit_s,
                )
                _kill(pid)


def suspended_processes(run_id: str, own: Mapping[int, str]) -> dict[int, str]:
    """Names of the suspended workers of this run on this host, and of those in `own`. What a worker started itself is
    none of ours."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        state, parent = _state(pid)
        if state != _SUSPENDED:
            continue
        variables = _environment(pid)
        if pid in own:
            found[pid] = own[pid]
        elif variables.get(RUN_MARK) == run_id != _environment(parent).get(RUN_MARK):
            found[pid] = f"a worker of {variables.get('ROLL_ROLE')}"
    return found


def _state(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # gone meanwhile
        return "", 0
    return fields[0], int(fields[1])


def _environment(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (line.decode(errors="replace").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
