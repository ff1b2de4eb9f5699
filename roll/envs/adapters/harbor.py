"""Task folders of Harbor: instruction.md is asked, a shell in the sandbox is the tool, tests/test.sh is the reward.

The sandbox stands in for the container: a Dockerfile is not built, so a task must do with the programs of this machine.
"""

import base64
import json
import logging
import os
import re
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from roll.envs.gymnasium import numbers
from roll.envs.tools.base import ToolError
from roll.errors import EnvError, describe
from roll.utils.files import expanded
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import BOX, SCRATCH, Job, Limits, Namespaces, own_python, view
from roll.utils.sandbox.lines import Ended, Lines, OutOfTime
from roll.utils.sandbox.process import Process, SandboxError

logger = logging.getLogger(__name__)

TASK, INSTRUCTION, TESTS, SCRIPT = "task.toml", "instruction.md", "tests", "test.sh"
_LIMITS = Limits(cpu_s=3600, wall_s=86_400, memory_mb=4096, disk_mb=512, threads=256)
_OUTPUT_BYTES = 65536
_VERIFIER = "/logs/verifier"
_MOST_FILE_BYTES = 16 << 20  # of a task's files together
_NOT_COPIED = re.compile(r"(.*/)?(Dockerfile|docker-compose[^/]*\.ya?ml|\.dockerignore)")
_DISKS = ("/tests", "/logs")  # the judge's own, empty when the tests come: a policy may fill /tmp
_GRACE_S = 60.0  # for the runner to answer; nothing that the policy starts can stop it
_TEST_PYTHON = "/logs/python"
_TEST_VARIABLES = {"TMPDIR": "/logs", "PYTHONPATH": _TEST_PYTHON, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
# The folders that Python without PYTHONSAFEPATH searches first are searched last: so the policy's modules are found,
# and none in the place of pytest or of the library.
_PATH_LAST = b"""
import os, sys
for word in getattr(sys, "orig_argv", ())[1:]:
    if word.endswith(".py"):
        sys.path.append(os.path.dirname(os.path.abspath(word)))
        break
sys.path.append(os.getcwd())
"""
# What runs inside as process 1: a line of JSON in, a line out. Commands never see its pipes, and cannot signal it.
_RUNNER = """
import base64, json, os, signal, subprocess, sys, time
def run(order):
    try:
        return started(order)
    except OSError:  # of all that commands have left behind: processes, files
        end(order)
        try:
            return started(order)
        except OSError as error:
            return {"code": 126, "output": f"bash: {os.strerror(error.errno)}"}
def started(order):
    folder = order["folder"] if os.path.isdir(order["folder"]) else "/tmp"
    with open(unnamed_file(), "w+b") as said:
        shell = subprocess.Popen(["/bin/bash", "-c", order["command"]], stdin=subprocess.DEVNULL, stdout=said,
                                 stderr=subprocess.STDOUT, cwd=folder, env=os.environ | order["environment"],
                                 start_new_session=True)
        code = ended(shell.pid, order["timeout_s"])
        if code is None:
            os.killpg(shell.pid, signal.SIGKILL)
            ended(shell.pid, 3600)
        shell.returncode = code or 0  # it is reaped already
        size = said.seek(0, 2)
        said.seek(max(0, size - order["bytes"]))
        return {"code": code, "output": said.read().decode(errors="replace")}
def unnamed_file():
    for place in ("/tmp", *order["disks"]):
        try:
            return os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            full = error
    raise full
def ended(pid, seconds):
    until, pause = time.monotonic() + seconds, 0.001
    while True:
        number, status = os.waitpid(-1, os.WNOHANG)  # orphans, too
        if number == pid:
            return os.waitstatus_to_exitcode(status)
        if not number:
            if time.monotonic() > until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
def write(order):
    for name, content in order["files"].items():
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(content))
        os.chmod(name, 0o755)
    return {}
def read(order):
    try:
        with open(os.open(order["file"], os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return {"content": file.read(1 << 16).decode(errors="replace")}
    except OSError:
        return {"content": None}
def end(order):
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while os.waitpid(-1, 0)[0]:
            pass
    except ChildProcessError:
        pass
    return {}
def fresh(order):
    end(order)
    wipe = 'chmod 1777 "$@" 2>/dev/null; chmod -R u+rwx "$@" 2>/dev/null; exec find "$@" -mindepth 1 -delete'
    subprocess.run(["/bin/sh", "-c", wipe, "sh", *order["disks"]], check=True, stdout=subprocess.DEVNULL)
    unlink(order["disks"])
    return {}
def unlink(disks):  # what leads to a place where the tests come
    os.chdir(disks[0])  # /proc/self/cwd is such a place
    barred = tuple(f"{place}/" for place in (*disks, "/proc"))
    opened = ["-type", "d", "!", "-perm", "-500", "-exec", "chmod", "u+rwx", "{}", ";"]
    found = subprocess.run(["find", "/tmp", *opened, "-o", "-type", "l", "-print0"], stdout=subprocess.PIPE).stdout
    for link in os.fsdecode(found).split("\\0")[:-1]:
        try:
            end = os.path.realpath(link) + "/"
        except RecursionError:  # a chain that no program can follow
            continue
        if len(link) < 1000 and (len(end) > 1000 or end.startswith(barred)):
            folder = os.path.dirname(link)
            if not os.access(folder, os.W_OK):
                os.chmod(folder, 0o700)
            os.unlink(link)
kinds = {"run": run, "write": write, "read": read, "end": end, "fresh": fresh}
for line in sys.stdin:
    order = json.loads(line)
    print(json.dumps(kinds[order["kind"]](order)), flush=True)
"""


class HarborTasks(Sequence[Mapping[str, Any]]):
    """The tasks of a folder, by name: `question` is the instruction, `folder` the task's own."""

    def __init__(self, folder: str):
        """Raises EnvError if no folder below holds a task."""
        self._folders = sorted(file.parent for file in expanded(folder).glob(f"**/{TASK}"))
        if not self._folders:
            raise EnvError(f"there is no {TASK} in {folder} or in a folder below it")

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, place: Any) -> Any:
        folder = self._folders[place]
        question = (folder / INSTRUCTION).read_text(encoding="utf-8")
        return {"question": question, "name": folder.name, "folder": str(folder.absolute())}


@dataclass(frozen=True)
class _Task:
    """A task as its folder says it is. `workdir`: where its commands run."""

    name: str
    files: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    workdir: str
    test_timeout_s: float
    test_environment: Mapping[str, str]


class HarborTask:
    """Class of tools for env_manager_cls: tools. Its tasks are those of a folder (`tasks: FOLDER`).

    A command may take `timeout_s`. The reward is what tests/test.sh writes: reward.txt, or `reward_key` of reward.json,
    whose other numbers are metrics.
    """

    def __init__(self, timeout_s: float = 120.0, reward_key: str = "reward"):
        self._timeout_s, self._reward_key = timeout_s, reward_key
        self._task: _Task | None = None
        self._process: Process | None = None
        self._lines: Lines | None = None

    def reset(self, folder: str | None = None) -> None:
        """Starts the sandbox with the task's files in its working directory. Raises EnvError."""
        if folder is None:
            raise EnvError(
                "tool_class: harbor plays the tasks of a folder. Set tasks to it, for example tasks: tasks/hello"
            )
        self._task = task = _read(Path(folder))
        self._process = Process(_job(task.workdir), sandbox()).__enter__()
        self._lines = Lines(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._run(f"mkdir -p {SCRATCH}{task.workdir}", _GRACE_S, "/")
        self._ask(kind="write", files=_packed(task.files, task.workdir))

    def bash(self, command: str) -> str:
        """Runs a command in bash and returns what it prints. Files stay from one call to the next; the working
        directory and variables of the shell do not.

        Args:
            command: The command, for example "ls -l && cat notes.txt".
        """
        assert self._task is not None
        ended = self._run(command, self._timeout_s, self._task.workdir)
        output = str(ended["output"])
        if ended["code"] is None:
            raise ToolError(f"the command took longer than {self._timeout_s:g} s and was stopped. {output}".strip())
        return output if not ended["code"] else f"{output}\n[exit code {ended['code']}]".lstrip()

    def get_reward(self) -> dict[str, Any]:
        """Runs the task's tests where the policy worked, when all that it has started is ended. Tests that end without
        a reward are a 0 with a warning: the policy's files are part of them."""
        task = self._task
        assert task is not None
        self._ask(kind="fresh")
        python = _packed({"sitecustomize.py": _PATH_LAST}, _TEST_PYTHON)
        self._ask(kind="write", files={**_packed(task.tests, "/tests"), **python})
        variables = {**_TEST_VARIABLES, **task.test_environment}
        ended = self._run(f"mkdir -p {_VERIFIER}; /tests/{SCRIPT}", task.test_timeout_s, task.workdir, variables)
        self._ask(kind="end")
        try:
            rewards = self._rewards(ended, task.test_timeout_s)
        except ValueError as error:
            logger.warning("Harbor, %s: %s. The reward is 0.", task.name, error)
            return {"reward": 0.0, "metrics": {"no_verdict": 1.0}}
        if self._reward_key not in rewards:
            raise EnvError(
                f"reward.json has {', '.join(rewards)}, not {self._reward_key}: set reward_key in env_config"
            )
        return {"reward": rewards.pop(self._reward_key), "metrics": {"no_verdict": 0.0, **rewards}}

    def close(self) -> None:
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None

    def _rewards(self, ended: Mapping[str, Any], limit_s: float) -> dict[str, float]:
        if ended["code"] is None:
            raise ValueError(f"the task's tests took longer than {limit_s:g} s")
        for name in ("reward.json", "reward.txt"):
            content = self._ask(kind="read", file=f"{_VERIFIER}/{name}")["content"]
            if content is None:
                continue
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                value = None
            written: dict[Any, Any] = value if isinstance(value, dict) else {self._reward_key: value}
            rewards = numbers(written)
            if not rewards or len(rewards) < len(written):
                raise ValueError(f"the task's tests wrote {content[:100]!r} into {name}, which is no reward")
            return rewards
        said = str(ended["output"])[-500:].strip()
        raise ValueError(f"the task's tests wrote no reward into {_VERIFIER}; they said: {said}")

    def _run(
        self, command: str, timeout_s: float, folder: str, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return self._ask(
            timeout_s + _GRACE_S,
            kind="run",
            command=command,
            timeout_s=timeout_s,
            folder=folder,
            environment=dict(environment or {}),
            bytes=_OUTPUT_BYTES,
        )

    def _ask(self, limit_s: float = _GRACE_S, **order: Any) -> dict[str, Any]:
        """Raises EnvError if the sandbox itself fails: nothing that runs in it can end or stop its process 1."""
        assert self._process is not None and self._lines is not None
        deadline = time.monotonic() + limit_s
        try:
            self._lines.send({**order, "disks": _DISKS}, deadline)
            return self._lines.receive(deadline)
        except OutOfTime:
            why = f"it did not answer within {limit_s:g} s"
        except (Ended, OSError):
            try:
                why = f"it ended with code {self._process.exit_code(10.0)}"
            except SandboxError as error:
                why = str(error)
        raise EnvError(f"harbor: the sandbox is gone: {why} {self._process.errors()[-300:]}".strip())


def sandbox() -> Namespaces:
    """Return the sandbox in which commands run. Raises EnvError on a machine that has none."""
    try:
        return find_means(*_shown())
    except SandboxUnavailable as error:
        raise EnvError(f"harbor runs commands in a sandbox, and {error}") from None


def _shown() -> tuple[str, ...]:
    """This Python with its packages: tests are often written for pytest."""
    return tuple(dict.fromkeys((os.path.realpath(sys.base_prefix), *own_python()[1], sys.prefix)))


def _job(workdir: str) -> Job:
    """A sandbox with the places that tasks know. The working directory lies in /tmp."""
    seen = view(*_shown())
    path = os.pathsep.join((f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"))
    return Job(
        (own_python()[0], "-I", "-S", f"{BOX}/run.py"),
        replace(seen, links=(*seen.links, (f"{SCRATCH}{workdir}", workdir))),
        _LIMITS,
        {"run.py": _RUNNER.encode()},
        {"PATH": path},
        may_fork=True,
        is_first=True,
        disks=_DISKS,
    )


def _read(folder: Path) -> _Task:
    """Raises EnvError for a folder that is no task, or one that needs what is not here."""
    if not (folder / TESTS / SCRIPT).is_file():
        more = " Tasks in steps are not played." if (folder / "steps").is_dir() else ""
        raise EnvError(f"the task {folder} has no {TESTS}/{SCRIPT}.{more}")
    try:
        verifier = tomllib.loads((folder / TASK).read_text(encoding="utf-8")).get("verifier", {})
        timeout_s = float(verifier.get("timeout_sec", 600.0))
        variables = {str(name): str(value) for name, value in verifier.get("env", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EnvError(f"{folder / TASK} cannot be read: {describe(error)}") from None
    image = folder / "environment" / "Dockerfile"
    if image.is_file() or (folder / "environment" / "docker-compose.yaml").is_file():
        _say_once()
    files = {
        name: content for name, content in _files(folder / "environment").items() if not _NOT_COPIED.fullmatch(name)
    }
    return _Task(folder.name, files, _files(folder / TESTS), _workdir(image), timeout_s, variables)


@cache
def _say_once() -> None:
    logger.warning(
        "Harbor: no Dockerfile is built. Commands run in the sandbox with the programs of this machine; other files of "
        "environment/ lie in the working directory."
    )


def _workdir(image: Path) -> str:
    try:
        found = re.findall(r"^\s*WORKDIR\s+(/[\w./-]+?)/?\s*$", image.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = []
    place = os.path.normpath(found[-1]) if found else "/app"
    taken = ("/tmp", "/usr", "/etc", "/tests", "/logs", "/bin", "/lib", "/dev", "/box", sys.prefix)
    is_free = place != "/" and not any(f"{place}/".startswith(f"{other}/") for other in taken)
    return place if is_free else "/app"


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if sum(file.stat().st_size for file in files) > _MOST_FILE_BYTES:
        raise EnvError(f"{folder} holds more than {_MOST_FILE_BYTES >> 20} MiB")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _packed(files: Mapping[str, bytes], place: str) -> dict[str, str]:
    return {f"{place}/{name}": base64.b64encode(content).decode() for name, content in files.items()}
