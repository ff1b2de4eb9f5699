"""Notices that a process of Ray's own died on this host: without it no call to a worker ever ends."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from roll.distributed.executor.processes import cleaner
from roll.utils.owner_watch import when_gone

_VITAL = ("raylet", "gcs_server")
_RAYLET_LOGS = ("raylet.out", "raylet.err")
_OF_AN_AGENT = re.compile(rb"one Ray agent failed, agent_name = (\w+)")
_WITHOUT_IT = "no worker can be reached without it"
_MEMORY = "If nobody stopped it, the host may be out of memory (see `dmesg`)"
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_UNKNOWN = "cause unknown"


def vital_processes(directory: str) -> dict[int, str]:
    """Pids and names of those of the cluster with this directory."""
    names = {pid: _name(pid) for pid in cleaner.marked_processes(cleaner.MARK, directory)}
    return {pid: f"Ray's {name}" for pid, name in names.items() if name in _VITAL}


def when_one_dies(processes: Mapping[int, str], logs: Path, then: Callable[[str], None]) -> None:
    """Calls `then` from a thread, with a text that says what died and why, once for each. `logs`: where Ray writes what
    its processes say."""
    for pid, name in processes.items():
        when_gone(pid, partial(_say, name, pid, logs, then))


def died(name: str, pid: int) -> str:
    """The text for a death of which nobody knows more."""
    return f"{name} on this host died (pid {pid}, {_UNKNOWN}): {_WITHOUT_IT}. {_MEMORY}."


def _say(name: str, pid: int, logs: Path, then: Callable[[str], None]) -> None:
    then(_told(name, pid, _ending(pid), logs))


def _told(name: str, pid: int, ending: os.waitid_result | None, logs: Path) -> str:
    """A raylet ends in order when one of its agents dies: then that agent is what died."""
    was_killed = ending is not None and ending.si_code != os.CLD_EXITED
    if not was_killed and (agent := _failed_agent(logs)):
        return f"Ray's {agent} on this host died, and with it {name} (pid {pid}): {_WITHOUT_IT}. {_MEMORY}."
    if ending is None:
        return died(name, pid)
    if not was_killed:
        why = "It ended by itself, or was stopped"
        return f"{name} on this host ended (pid {pid}, exit code {ending.si_status}): {_WITHOUT_IT}. {why}."
    why = _MEMORY if ending.si_status == signal.SIGKILL else "It was ended by that signal"
    why = "It crashed" if ending.si_status in _CRASHES else why
    return f"{name} on this host died (pid {pid}, signal {ending.si_status}): {_WITHOUT_IT}. {why}."


def _failed_agent(logs: Path) -> str | None:
    """The agent for whose death the raylet ended, as it says in its log."""
    for name in _RAYLET_LOGS:
        try:
            if found := _OF_AN_AGENT.search((logs / name).read_bytes()):
                return found[1].decode()
        except OSError:
            continue
    return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _ending(pid: int) -> os.waitid_result | None:
    """How a child ended, without taking its status from who waits for it; None where nobody can say."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
