"""Running a job: its streams, its time, its end. Whatever happens here, nothing of it goes on afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Any, Literal

from roll.utils.sandbox.job import PASSED_VARIABLES, Job, Namespaces

CHUNK = 65536
STDERR_BYTES = 8192  # the end of it, which says why
SIGNALLED = 128
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
END_S = 60  # for the kernel to end what it was told to


class SandboxError(Exception):
    """The sandbox itself failed; it says nothing of what ran in it."""


@dataclass(frozen=True)
class Finished:
    """`ending`: exit (by itself or a signal: then `code` is above 128), time (CPU or waiting), output (too much)."""

    ending: Literal["exit", "time", "output"]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def is_fine(self) -> bool:
        return self.ending == "exit" and self.code == 0


class Process:
    """A job that runs, as context manager: at the end of the block all its processes are gone.

    `stdin` and `stdout` are descriptors, of which it gets copies, or None for pipes.
    """

    def __init__(self, job: Job, means: Namespaces, stdin: int | None = None, stdout: int | None = None):
        self._job, self._means, self._ends = job, means, (stdin, stdout)
        self._door: socket.socket | None = None
        self._started: subprocess.Popen[bytes] | None = None
        self._status = -1
        self._said = b""

    def __enter__(self) -> Process:
        status, theirs = os.pipe()
        os.set_blocking(status, False)
        passed, door = [theirs], None
        with ExitStack() as held:
            held.callback(os.close, theirs)

            def hold(content: bytes) -> int:
                passed.append(held.enter_context(_sealed(content)))
                return passed[-1]

            try:
                if self._job.has_door:
                    self._door, inner = socket.socketpair()
                    door = held.enter_context(inner).fileno()
                    passed.append(door)
                command, user = self._means.launch(self._job, theirs, hold, door)
                stdin, stdout = (subprocess.PIPE if end is None else end for end in self._ends)
                with later_alarms():
                    self._status = status
                    self._started = subprocess.Popen(
                        command,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=subprocess.PIPE,
                        bufsize=0,
                        env={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ},
                        cwd="/",
                        pass_fds=passed,
                        start_new_session=True,
                        user=user,
                        group=user,
                        extra_groups=None if user is None else [],
                    )
            except OSError as error:
                os.close(status)
                raise SandboxError(f"{self._means.name}: {error}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with later_alarms():
            self.kill()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
            os.close(self._status)
            if self._door is not None:
                self._door.close()

    def door(self) -> socket.socket:
        """The listening socket of a job with a door: who connects to DOOR_PORT of 127.0.0.1 inside is accepted here.
        Raises SandboxError if the sandbox could not be made."""
        assert self._door is not None
        _, descriptors, _, _ = socket.recv_fds(self._door, 16, 1)
        if not descriptors:
            self.exit_code(END_S)  # says why
            raise SandboxError(f"{self._means.name}: it has no door")
        return socket.socket(fileno=descriptors[0])

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._started is not None
        return self._started

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    def errors(self) -> str:
        """The end of what the job has said on stderr and nobody has read."""
        fd, said = self.stderr.fileno(), b""
        os.set_blocking(fd, False)
        try:
            while chunk := os.read(fd, CHUNK):
                said = (said + chunk)[-STDERR_BYTES:]
        except BlockingIOError:
            pass
        return said.decode(errors="replace").strip()

    def _reports(self) -> dict[str, Any]:
        """Read what the sandbox has reported of itself so far: a line at its start, one at its end."""
        try:
            while chunk := os.read(self._status, CHUNK):
                self._said += chunk
        except BlockingIOError:
            pass
        said: dict[str, Any] = {}
        for line in self._said.splitlines(keepends=True):
            said |= json.loads(line) if line.endswith(b"\n") else {}
        return said

    def kill(self) -> None:
        """Ends all processes of the job and waits until they are gone: the kernel ends them with the sandbox's first
        one, and that one after them."""
        first = self._first_process()
        self._process.kill()
        self._process.wait()
        if first is not None:
            ended = select.poll()
            ended.register(first, select.POLLIN)
            ended.poll(1000 * END_S)
            os.close(first)

    def _first_process(self) -> int | None:
        """A descriptor of number 1 of the sandbox's processes; None if it has ended, or has yet to begin."""
        number = self._reports().get("child-pid")
        try:
            return None if number is None else os.pidfd_open(number)
        except ProcessLookupError:
            return None

    def exit_code(self, timeout_s: float | None = None) -> int | None:
        """Waits for the end; None if it did not come in time. Raises SandboxError if the job never ran, or was killed
        with its sandbox."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        said = self._reports()
        if "exit-code" not in said:
            raise SandboxError(f"{self._means.name}: {said.get('error') or 'the job was not started, or was killed'}")
        return int(said["exit-code"])


def run(job: Job, means: Namespaces, stdin: bytes = b"") -> Finished:
    """Runs the job to its end, or to the end of its time; its stdin is a file. Raises SandboxError if
    the sandbox fails."""
    deadline = time.monotonic() + job.limits.wall_s
    with _sealed(stdin) as file, Process(job, means, stdin=file) as process:
        streams = _Streams(process, job.limits.output_bytes)
        ending = streams.exchange(deadline)
        stdout, stderr = b"".join(streams.output), streams.errors
        if ending is not None:
            return Finished(ending, SIGNALLED + signal.SIGKILL, stdout, stderr)
        try:
            code = process.exit_code(max(0.0, deadline - time.monotonic()))
        except SandboxError as error:
            raise SandboxError(f"{error} {stderr[-500:].decode(errors='replace')}".strip()) from None
        if code is None:  # it closed its streams and went on
            return Finished("time", SIGNALLED + signal.SIGKILL, stdout, stderr)
        return Finished("time" if code == SIGNALLED + signal.SIGXCPU else "exit", code, stdout, stderr)


@contextmanager
def _sealed(content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory that nobody can change, at its beginning."""
    fd = os.memfd_create("content", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


class _Streams:
    def __init__(self, process: Process, limit: int):
        self.output: list[bytes] = []
        self.errors = b""
        self._process, self._room = process, limit

    def exchange(self, deadline: float) -> Literal["time", "output"] | None:
        """Exchanges data until stdout and stderr end. Returns the limit that was reached, if any."""
        with selectors.DefaultSelector() as selector:
            for stream in (self._process.stdout, self._process.stderr):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            open_outputs = 2
            while open_outputs:
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    return "time"
                for key, _ in selector.select(wait_s):
                    going_on = self._take(key.fd)
                    if self._room < 0:
                        return "output"
                    if not going_on:
                        selector.unregister(key.fileobj)
                        open_outputs -= 1
        return None

    def _take(self, fd: int) -> bool:
        chunk = os.read(fd, CHUNK)
        if fd == self._process.stderr.fileno():
            self.errors = (self.errors + chunk)[-STDERR_BYTES:]
        else:
            self.output.append(chunk)
            self._room -= len(chunk)
        return len(chunk) > 0


@contextmanager
def later_alarms() -> Iterator[None]:
    """An alarm (see utils/timing.py) that comes in the block is handled at its end: a process that was
    started is known, and one that is to be ended is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    handler = signal.signal(signal.SIGALRM, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        if came and callable(handler):
            handler(signal.SIGALRM, came[0])
