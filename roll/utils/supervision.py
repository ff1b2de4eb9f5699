"""Runs one program and ends with it everything that it has started, however the program or its parent ends.

Run as a script, `python -I supervision.py JOB`, it does so for a command: JOB is JSON {"command": [...], "log": path}.
Standard input and output are the command's own; what it writes to standard error is kept in the log. It imports nothing
of roll.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil

GRACE_S = 5.0  # between asking and killing
SHORT_GRACE_S = 1.0  # of a command: who started it waits two seconds between the two
MOST_LOGGED = 4 << 20  # bytes of a program's output that are kept
NOT_STARTED = 127  # exit code of a command that cannot be started, as a shell has it
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl
_TAIL_BYTES = 4096


def adopt_orphans() -> None:
    """Make this process the parent of orphans that its descendants leave behind."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int) -> None:
    """This process gets that signal when the thread that started it has ended."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, number, 0, 0, 0)


def supervise(run: Callable[[int], NoReturn], log: Path, grace_s: float = GRACE_S) -> NoReturn:
    """Calls `run` in a child of this process with the descriptor of a pipe whose text is kept in the log, and ends when
    the child and everything that it has started are gone. SIGTERM asks them to end, and kills them `grace_s` later."""
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    adopt_orphans()
    end_with_parent(signal.SIGTERM)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    stop_times: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stop_times.append(time.monotonic()))
    output, sink = os.pipe()
    program = os.fork()
    if not program:
        signal.set_wakeup_fd(-1)
        for descriptor in (output, woken, wakes):
            os.close(descriptor)
        run(sink)
    os.close(sink)
    _let_go()
    code = 1
    try:
        code = _until_over(program, output, woken, log, stop_times, grace_s)
    finally:
        _kill_all()
        os._exit(code if 0 <= code < 256 else 128 - code if code > -127 else 255)


def _let_go() -> None:
    """Standard input and output are the program's: when it closes them, nobody else keeps them open."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)


def _until_over(program: int, output: int, woken: int, log: Path, stop_times: list[float], grace_s: float) -> int:
    """The exit code of the program; negative: its signal. A byte in `woken` says that a signal came."""
    ended = os.pidfd_open(program)
    ready = select.poll()
    for descriptor in (output, ended, woken):
        ready.register(descriptor, select.POLLIN)
    was_asked, is_open = False, True
    with log.open("ab") as file:
        room = max(0, MOST_LOGGED - file.tell())
        while True:
            events = dict(ready.poll(_wait_ms(stop_times, grace_s)))
            if output in events:
                read = os.read(output, 1 << 16)
                file.write(read[:room])
                file.flush()
                room = max(0, room - len(read))
                if not read:
                    is_open = False
                    ready.unregister(output)
            if woken in events:
                os.read(woken, 4096)
            if stop_times and not was_asked:
                was_asked = True
                _signal_all(signal.SIGTERM)
            if stop_times and time.monotonic() > stop_times[0] + grace_s:
                _signal_all(signal.SIGKILL)
            if ended in events:
                _, status = os.waitpid(program, 0)
                rest = select.poll()
                rest.register(output, select.POLLIN)
                while is_open and rest.poll(0) and (read := os.read(output, 1 << 16)):
                    file.write(read[:room])
                    room = max(0, room - len(read))
                return os.waitstatus_to_exitcode(status)


def _wait_ms(stop_times: list[float], grace_s: float) -> float | None:
    """How long nothing is to be done; None: until something comes."""
    if not stop_times:
        return None
    left_s = stop_times[0] + grace_s - time.monotonic()
    return 1000 * left_s + 1 if left_s > 0 else 50


def _signal_all(number: int) -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(number)


def _kill_all() -> None:
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        _signal_all(signal.SIGKILL)
        time.sleep(0.005)


def last_lines(log: Path, begin: int = 0, count: int = 4) -> str:
    """The last lines of a log that say something, on one line; "" where there is none behind byte `begin`."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    filled_lines = [line.strip() for line in lines if line.strip(" ^~")]
    return " | ".join(filled_lines[-count:])


def _run_command(command: list[str], sink: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)
    os.dup2(sink, 2)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def main() -> NoReturn:
    job = json.loads(sys.argv[1])
    supervise(lambda sink: _run_command(job["command"], sink), Path(job["log"]), SHORT_GRACE_S)


if __name__ == "__main__":
    main()
