"""The process that starts programs: it has imported the agent's module once, and forks a process for each episode.

Run as a module by `Programs`. Lines of JSON come on standard input, {"start": job} and {"stop": id}; a line {"id",
"code"} goes out when an episode's program and all that it has started are gone. It imports nothing of roll but this
and what watches over programs.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from roll.utils.supervision import GRACE_S, adopt_orphans, end_with_parent, supervise

FAILED = 70  # exit code of a function that raised


@dataclass(frozen=True)
class AgentSession:
    """Session that an agent's function receives beside its task: the address and the key of its model."""

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
    adopt_orphans()
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
            supervise(lambda sink: _run(job, self._agent, sink), Path(job["log"]))
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


def _run(job: dict[str, Any], agent: str, sink: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)
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
