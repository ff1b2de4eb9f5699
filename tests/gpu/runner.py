"""Runs checks, each in a process of its own with a time limit, several at a time where there are GPUs for them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.gpu.check import Check, Machine, Outcome, judge, num_devices, shares_gpus, why_skipped
from tests.gpu.machine import others_on

MARK = "ROLL_GPU_CHECK"  # in the environment of a check and of all that it starts
REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_S, _LAST_WORDS_S, _END_LIMIT_S = 0.1, 0.5, 20.0
_OVERTIME_S = 30.0  # that a check may take beyond the time of all, which was expected to be enough
_CAUSE_LENGTH = 300
_NOT_ALONE = "figures would be void, since other programs use the GPU"

Say = Callable[[str], None]


@dataclass
class _Running:
    check: Check
    devices: list[str]
    process: subprocess.Popen[bytes]
    mark: str
    directory: Path
    temporary: Path
    started: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Runner:
    """`devices`: the names of the machine's GPUs (or slots). A check gets some of them for itself, or shares one with
    up to `sharing` - 1 others. A check that would not be done within `limit_s` is not begun."""

    def __init__(
        self,
        machine: Machine,
        devices: Sequence[str],
        directory: Path,
        say: Say,
        sharing: int = 1,
        limit_s: float = math.inf,
    ):
        self._machine, self._directory, self._say = machine, directory, say
        self._sharing = sharing
        self._free = dict.fromkeys(devices, sharing)  # how many more checks a GPU can take
        self._running: list[_Running] = []
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s

    def run(self, checks: Sequence[Check]) -> Iterator[Outcome]:
        """Outcomes as they come. Whoever stops asking (Ctrl-C is an exception here) ends all that runs."""
        waiting = list(checks)
        try:
            while waiting or self._running:
                for check in list(waiting):
                    reason = why_skipped(check, self._machine)
                    if reason is not None:
                        waiting.remove(check)
                        yield Outcome(check.name, "skipped", reason)
                    elif time.monotonic() + check.expected_s > self._deadline:
                        waiting.remove(check)
                        yield Outcome(check.name, "skipped", f"no time for it (--minutes {self._limit_s / 60:g})")
                    elif devices := self._devices_for(check):
                        waiting.remove(check)
                        if self._measures(check) and (busy := others_on(devices)):
                            yield Outcome(check.name, "failed", f"{_NOT_ALONE}: {busy}")
                            continue
                        self._start(check, devices)
                    else:
                        break  # in order: a check that needs many GPUs is not put off for ever
                yield from self._ended()
                time.sleep(_POLL_S)
        finally:
            for running in self._running:
                _end(running)

    def _devices_for(self, check: Check) -> list[str]:
        """Those that it can have now; none if it has to wait. Checks that share fill a GPU before they take another."""
        count = num_devices(check, self._machine)
        need = self._need(check)
        fit = sorted((device for device, free in self._free.items() if free >= need), key=self._free.__getitem__)
        return fit[:count] if len(fit) >= count else []

    def _limit_of(self, running: _Running) -> float:
        """Its own limit, or what is left of all checks' time and a little more."""
        return min(running.check.limit_s, max(0.0, self._deadline + _OVERTIME_S - running.started))

    def _measures(self, check: Check) -> bool:
        """Whether what others do on its GPUs would be in its figures."""
        return check.alone and self._machine.device == "cuda"

    def _need(self, check: Check) -> int:
        return 1 if shares_gpus(check, self._machine) else self._sharing

    def _start(self, check: Check, devices: list[str]) -> None:
        for device in devices:
            self._free[device] -= self._need(check)
        directory = self._directory / check.name
        directory.mkdir(parents=True)
        mark = uuid.uuid4().hex
        temporary = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))  # short: sockets of Ray and engines go below
        environment = os.environ | {MARK: mark, "TMPDIR": str(temporary)}
        own = [str(REPOSITORY), str(REPOSITORY / "examples" / "tiny-count")]  # as in pyproject.toml
        path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment |= {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        if self._machine.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        command = [sys.executable, "-m", "tests.gpu.child", check.function, json.dumps(dict(check.arguments))]
        command += [self._machine.device, ",".join(devices), str(directory)]
        with (directory / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(_Running(check, devices, process, mark, directory, temporary, time.monotonic()))
        self._say(f"{check.name}: started")

    def _ended(self) -> Iterator[Outcome]:
        for running in list(self._running):
            if running.process.poll() is None and running.seconds < self._limit_of(running):
                continue
            outcome = _outcome(running, self._machine, self._limit_of(running))
            _end(running)
            if outcome.state == "passed" and self._measures(running.check) and (busy := others_on(running.devices)):
                outcome = replace(outcome, state="failed", reason=f"{_NOT_ALONE}: {busy}")
            self._running.remove(running)
            for device in running.devices:
                self._free[device] += self._need(running.check)
            yield outcome


def _outcome(running: _Running, machine: Machine, limit_s: float) -> Outcome:
    check, status = running.check, running.process.poll()

    def ended(state: str, reason: str = "", figures: dict[str, float] | None = None) -> Outcome:
        return Outcome(check.name, state, reason, figures or {}, round(running.seconds, 1))  # type: ignore[arg-type]

    if status is None:
        with suppress(ProcessLookupError):
            os.kill(running.process.pid, signal.SIGUSR1)  # its log then says where it was
        time.sleep(_LAST_WORDS_S)
        return ended("timed out", f"not done after {limit_s:.0f} s")
    if status < 0:
        return ended("crashed", f"ended by {signal.Signals(-status).name}")
    answer = running.directory / "answer.json"
    if not answer.exists():
        return ended("crashed", f"ended with status {status} and without an answer")
    told = json.loads(answer.read_text())
    if "error" in told:
        return ended("failed", told["error"][:_CAUSE_LENGTH])
    if "skipped" in told:
        return ended("skipped", told["skipped"])
    wrong = judge(check, told["figures"], machine.device)
    return ended("failed" if wrong else "passed", "; ".join(wrong), told["figures"])


def _end(running: _Running) -> None:
    """Kills a check and all that it started; returns when they are gone: they would hold memory of their GPUs."""
    deadline = time.monotonic() + _END_LIMIT_S
    while (found := _marked(running.mark)) and time.monotonic() < deadline:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(_POLL_S)
    running.process.wait()
    shutil.rmtree(running.temporary, ignore_errors=True)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
