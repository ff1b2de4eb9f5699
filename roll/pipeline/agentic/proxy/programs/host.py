"""The process that starts programs: it has imported the agent's module once, and forks a process for each episode.

Run as a module by `Programs`. Lines of JSON come on standard input, {"start": job} and {"stop": id}; a line {"id",
"code"} goes out when an episode's program and all that it has started are gone. It imports nothing of roll but this
and what watches over programs.
"""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from roll.utils.imports import traced
from roll.utils.supervision import GRACE_S, adopt_orphans, end_with_parent, supervise

FAILED = 70  # exit code of a function that raised
ARGUMENTS = "ROLL_AGENT_ARGUMENTS"  # the variable that holds the arguments of an agent's class, as JSON

Agent = Callable[[dict[str, Any], "AgentSession"], Any]


@dataclass(frozen=True)
class AgentSession:
    """Session that an agent's function receives beside its task: the address and the key of its model. `purpose`:
    train, validation, or validation/NAME of one of eval_sets."""

    base_url: str
    api_key: str
    anthropic_base_url: str
    model: str
    purpose: str
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
    arguments = json.loads(os.environ.pop(ARGUMENTS, "{}"))
    agent: Agent | None = None
    if len(sys.argv) > 1:
        try:
            agent = agent_of(sys.argv[1], arguments)
        except BaseException as error:
            traceback.print_exc()
            os.write(replies, json.dumps({"failed": traced(error)}).encode() + b"\n")
            os._exit(FAILED)
    _Host(lines, replies, agent).serve()


def agent_of(path: str, arguments: Mapping[str, Any]) -> Agent:
    """The function behind module:function, or an object of the class behind module:Class. Raises TypeError for
    arguments that a function cannot take."""
    module, _, name = path.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        made: Any = found(**arguments)
        return made
    if arguments:
        raise TypeError(f"{path} is no class, and env_config holds the arguments of one: {', '.join(arguments)}")
    return found


class _Host:
    def __init__(self, lines: int, replies: int, agent: Agent | None):
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


def _run(job: dict[str, Any], agent: Agent | None, sink: int) -> NoReturn:
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
        assert agent is not None, "checked with the configuration"
        result = agent(job["task"], AgentSession(**job["session"]))
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        if result is not None:  # else it may have written its reward file itself
            Path(job["result"]).write_text(json.dumps({"value": _plain(result)}), encoding="utf-8")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.write(f"{traced(error)}\n")  # the end of the log is what is said of a failure
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


async def _awaited(result: Any) -> Any:
    return await result


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    main()
