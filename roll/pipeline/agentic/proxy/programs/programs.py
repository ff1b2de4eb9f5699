"""Programs of episodes, each in processes of its own: started, watched and ended from the worker's event loop."""

import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from roll.distributed.executor.processes.cleaner import MARK
from roll.errors import EnvError
from roll.pipeline.agentic.proxy.programs import host, sandboxed
from roll.utils.background import BackgroundTasks
from roll.utils.imports import file_on_path, place_on_path
from roll.utils.sandbox.backends import find_means
from roll.utils.supervision import GRACE_S, last_lines

PLACES = ("base_url", "api_key", "anthropic_base_url", "model", "task_file", "reward_file")
"""Words in braces that a command may hold."""
_READY_S = 300.0


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (128 + the signal's number if one did), what it returned or wrote into its
    reward file, and the last lines of its output."""

    code: int
    result: Any
    tail: str


class Programs:
    """Starts the programs of one custom_envs entry through one host process (see host.py). `agent` is
    module:function, or module:Class, which is made there with `arguments`; else `command` says what is started, in a
    sandbox if `is_apart`, where it sees `files`."""

    def __init__(
        self,
        agent: str | None,
        command: str | None,
        logs: Path,
        is_apart: bool = False,
        arguments: Mapping[str, Any] | None = None,
        files: Sequence[str] = (),
    ):
        self._agent, self._logs, self._is_apart, self._arguments = agent, logs, is_apart, arguments or {}
        self._command = None if command is None else [file_on_path(word) for word in shlex.split(command)]
        self._files = [place_on_path(file) for file in files]
        self._host: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._running: dict[str, asyncio.Future[int]] = {}
        self._tasks = BackgroundTasks()
        self._num_started = 0

    async def run(self, name: str, task: Mapping[str, Any], environment: Mapping[str, str]) -> Ended:
        """Plays an episode. Cancelling it ends the program and all that it has started, and waits for that."""
        process = await self._ready()
        folder = Path(tempfile.mkdtemp(prefix="agent-", dir=os.environ.get(MARK)))
        self._num_started += 1
        episode = f"{name}-{self._num_started}"
        ended = self._running[episode] = asyncio.get_running_loop().create_future()
        log = self._logs / f"{name}.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._send(process, {"start": self._job(episode, folder, log, task, environment)})
            try:
                code = await asyncio.shield(ended)
            except asyncio.CancelledError:
                self._send(process, {"stop": episode})
                await asyncio.wait({ended}, timeout=4 * GRACE_S)
                raise
            return Ended(code, _result(folder), last_lines(log))
        finally:
            self._running.pop(episode, None)
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def stop(self) -> None:
        """Ends the host, and with it what still runs."""
        if self._host is not None and self._host.stdin is not None:
            self._host.stdin.close()
            await self._host.wait()

    def _job(
        self, episode: str, folder: Path, log: Path, task: Mapping[str, Any], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        files = {name: str(folder / name.replace("_file", ".json")) for name in ("task_file", "reward_file")}
        job = {
            "id": episode,
            "folder": str(folder),
            "log": str(log),
            "task": dict(task),
            "result": files["reward_file"],
        }
        if self._is_apart:
            return job | {"env": {}, "command": self._apart(folder, task, environment), "session": {}}
        Path(files["task_file"]).write_text(json.dumps(dict(task)), encoding="utf-8")
        session = _session(environment)
        env = {**environment, "ROLL_TASK_FILE": files["task_file"], "ROLL_REWARD_FILE": files["reward_file"]}
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
        return job | {
            "env": env,
            "command": self._command_of({**session, **files}),
            "session": {**session, "folder": str(folder), "seed": task["seed"]},
        }

    def _apart(self, folder: Path, task: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
        """The command that starts the program in a sandbox, where the endpoint has another address."""
        own = urlsplit(environment["OPENAI_BASE_URL"])
        inside = {name: value.replace(f"{own.scheme}://{own.netloc}", sandboxed.INSIDE, 1)
                  for name, value in environment.items()}  # fmt: skip
        inside |= {"ROLL_TASK_FILE": sandboxed.TASK_FILE, "ROLL_REWARD_FILE": sandboxed.REWARD_FILE}
        files = {"task_file": sandboxed.TASK_FILE, "reward_file": sandboxed.REWARD_FILE}
        assert self._command is not None and own.port is not None, "checked with the configuration"
        shown = sandboxed.shown_paths(self._command, self._files)
        order = {
            "command": self._command_of({**_session(inside), **files}),
            "shown": shown,
            "environment": inside,
            "task": dict(task),
            "port": own.port,
            "is_privileged": find_means(*shown, has_door=True).privileged,
        }
        file = folder / "order.json"
        file.write_text(json.dumps(order), encoding="utf-8")
        return [sys.executable, "-m", sandboxed.__name__, str(file)]

    def _command_of(self, places: Mapping[str, str]) -> list[str] | None:
        return None if self._command is None else [_filled(word, places) for word in self._command]

    async def _ready(self) -> asyncio.subprocess.Process:
        """The host, started when it is first needed, and again if it died. Raises EnvError if the agent's module
        cannot be imported."""
        async with self._starting:
            if self._host is not None and self._host.returncode is None:
                return self._host
            arguments = [] if self._agent is None else [self._agent]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", host.__name__, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "PYTHONUNBUFFERED": "1",
                    host.ARGUMENTS: json.dumps(self._arguments),
                },
            )
            assert process.stdout is not None
            try:
                first = await asyncio.wait_for(process.stdout.readline(), _READY_S)
            except TimeoutError:
                process.kill()
                raise EnvError(f"agent: {self._agent} took longer than {_READY_S:g} s to import") from None
            if "ready" not in (reply := json.loads(first or "{}")):
                why = reply.get("failed", "its process died")
                raise EnvError(f"agent: {self._agent} cannot be imported or made: {why}")
            self._host = process
            self._tasks.start(self._listen(process))
            return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            report = json.loads(line)
            if (ended := self._running.get(report["id"])) is not None and not ended.done():
                ended.set_result(int(report["code"]))
        for ended in self._running.values():  # the host died, and its programs with it
            if not ended.done():
                ended.set_exception(EnvError("the process that starts programs died"))

    def _send(self, process: asyncio.subprocess.Process, request: Mapping[str, Any]) -> None:
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(request).encode() + b"\n")


def _session(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        "base_url": environment["OPENAI_BASE_URL"],
        "api_key": environment["OPENAI_API_KEY"],
        "anthropic_base_url": environment["ANTHROPIC_BASE_URL"],
        "model": environment["ROLL_MODEL"],
        "purpose": environment["ROLL_PURPOSE"],
    }


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name in PLACES:
        word = word.replace(f"{{{name}}}", places[name])
    return word


def _result(folder: Path) -> Any:
    """Read the reward file; None if there is none. Text that is no JSON stays text."""
    try:
        text = (folder / "reward.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return result["value"] if isinstance(result, dict) and result.keys() == {"value"} else result
