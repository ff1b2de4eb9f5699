"""Notices that a process of Ray's own died on this host: without it no call to a worker ever ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from roll.distributed.executor.processes import cleaner
from roll.utils.owner_watch import when_gone

_VITAL = ("raylet", "gcs_server")


def vital_processes(directory: str) -> dict[int, str]:
    """Pids and names of those of the cluster with this directory."""
    names = {pid: _name(pid) for pid in cleaner.marked_processes(cleaner.MARK, directory)}
    return {pid: f"Ray's {name}" for pid, name in names.items() if name in _VITAL}


def when_one_dies(processes: Mapping[int, str], then: Callable[[str], None]) -> None:
    """Calls `then` from a thread, with a text that says what died, once for each."""
    for pid, name in processes.items():
        when_gone(pid, partial(_say, name, pid, then))


def died(name: str, pid: int, cause: str = "cause unknown") -> str:
    return f"{name} on this host died (pid {pid}, {cause})"


def _say(name: str, pid: int, then: Callable[[str], None]) -> None:
    then(died(name, pid, _cause(pid)))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _cause(pid: int) -> str:
    """How a child ended, without taking its status from who waits for it."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        ended = None
    if ended is None:
        return "cause unknown"
    return f"exit code {ended.si_status}" if ended.si_code == os.CLD_EXITED else f"signal {ended.si_status}"
