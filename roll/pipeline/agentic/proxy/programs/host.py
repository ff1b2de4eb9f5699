"""The process that starts programs: it has imported the agent's module once, and forks a process for each episode.

Run as a module by `Programs`. Lines of JSON come on standard input, {"start": job} and {"stop": id}; a line {"id",
"code"} goes out when an episode's program and all that it has started are gone. It imports nothing of roll but this.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

GRACE_S = 5.0  # between asking and killing
FAILED = 70  # exit code of a function that raised
MOST_LOGGED = 4 << 20  # bytes of a program's output that are kept
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl


@dataclass(frozen=True)
class AgentSession:
    """What an agent's function gets beside its task: where its model answers, and under which key."""

    base_url: str
    api_key: str
    anthropic_base_url: str
    model: str
    folder: str
    seed: int


def main() -> None:
    """Serves until standard input ends, and kills what still runs then."""
    lines, replies = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what the agent's module prints is no reply
    os.set_inheritable(lines, False)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    if agent:
        sys.path = [entry for entry in sys.path if entry]
        function_of(agent)
    _Host(lines, replies, agent).serve()


def function_of(agent: str) -> Any:
    """The function behind module:function."""
    module, _, name = agent.partition(":")
    return getattr(importlib.import_module(module), name)


class _Host:
    def __init__(self, lines: int, replies: int, agent: str):
        self._lines, self._replies, self._agent = lines, replies, agent
        self._running: dict[int, str] = {}  # ids of episodes by the process that watches over them
        self._woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        self._reply({"ready": True})
        unread = b""
        ready = select.poll()
        ready.register(self._lines, select.POLLIN)
        ready.register(self._woken, select.POLLIN)
        while True:
            events = dict(ready.poll())
            if self._woken in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap()
            if self._lines in events:
                read = os.read(self._lines, 1 << 16)
                if not read:
                    break
                *whole, unread = (unread + read).split(b"\n")
                for line in whole:
                    self._take(json.loads(line))
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 2 * GRACE_S
        while self._running and time.monotonic() < until:
            self._reap()
            time.sleep(0.02)

    def _take(self, request: dict[str, Any]) -> None:
        if "stop" in request:
            for pid, name in self._running.items():
                if name == request["stop"]:
                    os.kill(pid, signal.SIGTERM)
            return
        job = request["start"]
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            os.close(self._lines)
            _watch(job, self._agent)
        self._running[pid] = job["id"]

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if (name := self._running.pop(pid, None)) is not None:
                    self._reply({"id": name, "code": os.waitstatus_to_exitcode(status)})

    def _reply(self, value: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._replies, json.dumps(value).encode() + b"\n")


def _watch(job: dict[str, Any], agent: str) -> NoReturn:
    """Runs the program of a job, keeps its output, and ends when it and everything that it has started are gone."""
    libc = ctypes.CDLL(None)
    os.setsid()
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # what a program leaves behind becomes a child of this process
    libc.prctl(_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    stop_times: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stop_times.append(time.monotonic()))
    output, sink = os.pipe()
    program = os.fork()
    if not program:
        os.close(output)
        _run(job, agent, sink)
    os.close(sink)
    code = 1
    try:
        code = _until_over(program, output, Path(job["log"]), stop_times)
    finally:
        _kill_all()
        os._exit(code if 0 <= code < 256 else 128 - code if code > -127 else 255)


def _until_over(program: int, output: int, log: Path, stop_times: list[float]) -> int:
    """The exit code of the program; negative: the signal that ended it."""
    ready = select.poll()
    ready.register(output, select.POLLIN)
    was_asked, is_open, room = False, True, MOST_LOGGED
    with log.open("ab") as file:
        while True:
            if is_open and ready.poll(50):
                read = os.read(output, 1 << 16)
                file.write(read[:room])
                file.flush()
                room = max(0, room - len(read))
                is_open = bool(read)
            elif not is_open:
                time.sleep(0.01)
            if stop_times and not was_asked:
                was_asked = True
                _signal_all(signal.SIGTERM)
            if stop_times and time.monotonic() > stop_times[0] + GRACE_S:
                _signal_all(signal.SIGKILL)
            ended, status = os.waitpid(program, os.WNOHANG)
            if ended:
                while is_open and ready.poll(0) and (read := os.read(output, 1 << 16)):
                    file.write(read[:room])
                    room = max(0, room - len(read))
                return os.waitstatus_to_exitcode(status)


def _signal_all(number: int) -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(number)


def _kill_all() -> None:
    """What is left of a program, daemons of it too, until there is none."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        _signal_all(signal.SIGKILL)
        time.sleep(0.005)


def _run(job: dict[str, Any], agent: str, sink: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(job["folder"])
    os.environ.update(job["env"])
    code = FAILED
    try:
        if command := job.get("command"):
            os.execvp(command[0], command)
        result = function_of(agent)(job["task"], AgentSession(**job["session"]))
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        if result is not None:  # else it may have written its reward file itself
            Path(job["result"]).write_text(json.dumps({"value": _plain(result)}), encoding="utf-8")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


async def _awaited(result: Any) -> Any:
    return await result


def _plain(value: Any) -> Any:
    """A number of another library's as Python's own."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    main()
