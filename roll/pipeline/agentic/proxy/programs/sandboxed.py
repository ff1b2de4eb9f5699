"""Runs one program in a sandbox whose only way out is the endpoint; a process of its own, for each episode.

`python -m roll.pipeline.agentic.proxy.programs.sandboxed <file>`: the file says what to run, as JSON: see
`Programs._apart`.
Its output and its exit code are the program's.
"""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roll.utils.sandbox.job import BOX, DOOR_PORT, Job, Limits, Namespaces, own_python, view
from roll.utils.sandbox.process import CHUNK, Process, SandboxError

INSIDE = f"http://127.0.0.1:{DOOR_PORT}"
TASK_FILE, REWARD_FILE = f"{BOX}/task.json", "/reward/reward.json"
MOST_OPEN = 256  # connections through the door
REFUSED = 71  # exit code where the sandbox itself failed
LIMITS = Limits(cpu_s=3600, wall_s=86_400, memory_mb=4096, disk_mb=512, threads=256)
_TRUTHS = ("answer", "truth", "label", "gold", "golden", "target", "solution", "reference", "expected", "test")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# What starts the program inside, as process 1, and posts what it wrote into its reward file, which nobody sees from
# outside. A program that is killed, or fails where no file or process can be made any more, has run what did that: a 0,
# and no fault of the machine.
RUNNER = """
import os, signal, subprocess, sys, urllib.error, urllib.request
def is_used_up():
    try:
        if not os.fork():
            os._exit(0)
    except OSError:
        return True
    return any(not (disk.f_bavail and disk.f_favail) for disk in map(os.statvfs, ("/tmp", "/reward")))
crashes = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
open(os.environ["ROLL_REWARD_FILE"], "w").close()  # it is there, however many files follow
program = subprocess.Popen(sys.argv[1:])
while True:
    ended, status = os.waitpid(-1, os.WUNTRACED)  # orphans, too
    if ended == program.pid and not os.WIFSTOPPED(status):
        break
    if ended == program.pid:
        os.kill(ended, signal.SIGCONT)
code = program.returncode = os.waitstatus_to_exitcode(status)
if code > 0 and is_used_up():
    why = "failed where it had used up its files or processes"
elif code < 0 and -code not in crashes:
    why = f"was ended by {signal.Signals(-code).name}"
else:
    why = ""
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    pass
try:
    with open(os.environ["ROLL_REWARD_FILE"], "rb") as file:
        said = file.read(1 << 20).strip()
except OSError:  # removed
    said = b""
if why:
    print(f"the program {why}: the reward is 0", file=sys.stderr)
    code, said = 0, b"0"
if not said:
    sys.exit(code if code >= 0 else 128 - code)
body = said if said.startswith(b"{") else b'{"reward": ' + said + b"}"
headers = {"Authorization": "Bearer " + os.environ["ROLL_REWARD_KEY"]}
try:
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/reward", body, headers)).read()
except urllib.error.HTTPError as error:
    print("the reward file:", error.read().decode(errors="replace"), file=sys.stderr)
sys.exit(code if code >= 0 else 128 - code)
"""


def shown_task(task: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any]:
    """The task without columns named like truths, except those that are asked for: what the program runs may look.

    Example: `ground_truth`, `correctAnswers` and `unit_tests` are left out, `latest` and `question` are not.
    """

    def is_truth(name: str) -> bool:
        return any(word.lower().removesuffix("s") in _TRUTHS for word in _WORD.findall(name))

    return {name: value for name, value in task.items() if name in asked or not is_truth(name)}


def shown_paths(command: Sequence[str], files: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the paths that a command can see beside the system's programs: this Python, its packages, the files that
    the command names, and `files`, which are files and folders by their whole paths."""
    _, libraries = own_python()
    named = [word for word in command if os.path.isabs(word) and Path(word).is_file()]
    own = [file for file in (*named, *files) if not file.startswith(("/usr/", "/bin/", "/lib"))]
    return tuple(dict.fromkeys((os.path.realpath(sys.base_prefix), *libraries, sys.prefix, *own)))


def job_of(order: Mapping[str, Any]) -> Job:
    """The program as a job: it works in an empty folder of its own, with the variables of its session."""
    python, _ = own_python()
    files = {"run.py": RUNNER.encode(), "task.json": json.dumps(order["task"]).encode()}
    path = os.pathsep.join((f"{sys.prefix}/bin", "/usr/bin", "/bin"))
    return Job(
        (python, "-I", "-S", f"{BOX}/run.py", *order["command"]),
        view(*order["shown"]),
        LIMITS,
        files,
        {"PATH": path, **order["environment"]},
        may_fork=True,
        has_door=True,
        is_first=True,
        disks=("/reward",),
    )


async def play(order: Mapping[str, Any]) -> int:
    """The program's exit code. Everything that it has started is gone afterwards."""
    with Process(job_of(order), Namespaces(order["is_privileged"]), stdout=1) as process:
        reader = threading.Thread(target=_pass_on, args=(process.stderr.fileno(), 2), daemon=True)
        reader.start()
        listener = await asyncio.to_thread(process.door)
        free = asyncio.Semaphore(MOST_OPEN)
        server = await asyncio.start_server(lambda *ends: _answer(order["port"], free, *ends), sock=listener)
        async with server:
            code = await asyncio.to_thread(process.exit_code)
        await asyncio.to_thread(reader.join, 5.0)
    assert code is not None
    return code


def _pass_on(source: int, sink: int) -> None:
    with suppress(OSError):
        while chunk := os.read(source, CHUNK):
            os.write(sink, chunk)


async def _answer(
    port: int, free: asyncio.Semaphore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copies a connection of the program to the endpoint, and back; one too many is closed."""
    if free.locked():
        writer.close()
        return
    async with free:
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, ours), _copy(theirs, writer), return_exceptions=True)
        ours.close()
        writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(CHUNK):
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:
        sink.close()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the program is asked, and this ends with it
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        code = asyncio.run(play(order))
    except SandboxError as error:
        sys.stderr.write(f"the sandbox failed: {error}\n")
        code = REFUSED
    sys.stdout.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
