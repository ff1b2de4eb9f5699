"""Runs one program in a sandbox whose only way out is the endpoint; a process of its own, for each episode.

`python -m roll.pipeline.agentic.proxy.programs.sandboxed <file>`: the file says what to run, as JSON (see `order_of`).
Its output and its exit code are the program's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roll.utils.sandbox.job import BOX, DOOR_PORT, SCRATCH, Job, Limits, Namespaces, own_python, view
from roll.utils.sandbox.process import CHUNK, Process, SandboxError

INSIDE = f"http://127.0.0.1:{DOOR_PORT}"
TASK_FILE, REWARD_FILE = f"{BOX}/task.json", f"{SCRATCH}/reward.json"
MOST_OPEN = 256  # connections through the door
REFUSED = 71  # exit code where the sandbox itself failed
LIMITS = Limits(cpu_s=3600, wall_s=86_400, memory_mb=4096, disk_mb=512, threads=256)
# What starts the program inside, and posts what it wrote into its reward file, which nobody sees from outside.
RUNNER = """
import os, subprocess, sys, urllib.error, urllib.request
code = subprocess.call(sys.argv[1:])
try:
    with open(os.environ["ROLL_REWARD_FILE"], "rb") as file:
        said = file.read().strip()
except OSError:
    sys.exit(code if code >= 0 else 128 - code)
body = said if said.startswith(b"{") else b'{"reward": ' + said + b"}"
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
try:
    urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/reward", body, headers)).read()
except urllib.error.HTTPError as error:
    print("the reward file:", error.read().decode(errors="replace"), file=sys.stderr)
sys.exit(code if code >= 0 else 128 - code)
"""


def shown_paths(command: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that a command can see beside the system's programs: this Python, its packages, and the folders
    of the files that the command names."""
    _, libraries = own_python()
    folders = [str(Path(word).parent) for word in command if os.path.isabs(word) and Path(word).is_file()]
    system = ("/usr/", "/bin/", "/lib")
    own = [folder for folder in folders if not f"{folder}/".startswith(system)]
    return tuple(dict.fromkeys((os.path.realpath(sys.base_prefix), *libraries, sys.prefix, *own)))


def order_of(
    command: Sequence[str],
    shown: Sequence[str],
    environment: Mapping[str, str],
    task: Mapping[str, Any],
    port: int,
    is_privileged: bool,
) -> dict[str, Any]:
    """Return the content of the order file. `port`: of the endpoint, on the loopback of this machine."""
    return {
        "command": list(command),
        "shown": list(shown),
        "environment": dict(environment),
        "task": dict(task),
        "port": port,
        "is_privileged": is_privileged,
    }


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
