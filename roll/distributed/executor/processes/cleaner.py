"""Runs as a process of its own beside a local Ray cluster and cleans up when the driver is gone, however it went.

Its standard input is a pipe that the driver holds: end of file means that the driver is done, or dead. Before that come
lines about whose death to tell (`driver_end`). Every process of the cluster carries MARK=<directory> in its
environment, and so does whatever a worker starts. It imports nothing of roll but what keeps the workers' logs, when it
comes to that: it starts in milliseconds (python -S).

    python -S cleaner.py DIRECTORY [LOGS]
"""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import sys
import time

MARK = "ROLL_RUNTIME_DIRECTORY"
SHARED_MEMORY = "/dev/shm"
RAY = "ray"  # Ray's part of the directory
KILLED = (
    "The process of the run (pid {pid}) ended without a word: it was killed, or it crashed. If nobody killed it, the "
    "host may be out of memory (see `dmesg`). Its workers are ended now; resume_from_checkpoint: true goes on from the "
    "newest checkpoint."
)


def marked_processes(variable: str, value: str) -> list[int]:
    """Living processes that started with this in their environment."""
    mark = f"{variable}={value}\0".encode()
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if mark in environ.read() + b"\0":
                    pids.append(int(name))
        except OSError:  # gone meanwhile, or another user's
            continue
    return pids


def kill_marked(variable: str, value: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while (processes := marked_processes(variable, value)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def segment_label(directory: str) -> str:
    """Part of the name of every piece of shared memory that the run with this directory makes."""
    return f"-{os.path.basename(directory)}-"


def remove_segments(directory: str) -> None:
    """Remove shared memory that killed processes could not remove themselves."""
    for name in os.listdir(SHARED_MEMORY) if os.path.isdir(SHARED_MEMORY) else ():
        if segment_label(directory) in name:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(SHARED_MEMORY, name))


def clean(directory: str, logs: str | None = None) -> None:
    """Ends what is left of the run with this directory, keeps what its workers printed in `logs`, and removes it."""
    kill_marked(MARK, directory)
    if logs is not None:
        try:
            _keep_logs(directory, logs)
        except Exception as error:  # a full disk, say, must not keep the rest from being removed
            sys.stderr.write(f"The output of the workers could not be saved in {logs}: {error}\n")
    shutil.rmtree(directory, ignore_errors=True)
    remove_segments(directory)


def _keep_logs(directory: str, logs: str) -> None:
    from roll.distributed.executor.processes.worker_logs import keep_logs

    keep_logs(pathlib.Path(directory, RAY, "session_latest", "logs"), pathlib.Path(logs))


def driver_end(pipe: int, driver: int) -> "str | None":
    """Waits until the other end of the pipe, which the process `driver` holds, is closed; returns what was left unsaid.
    Lines in it: `PID TEXT`: should that process die before the driver, TEXT is for the user; an empty line: the driver
    has said it, or ends by itself. A driver that was killed takes Ray's processes along: they are not its cause."""
    events, texts, unsaid, is_said, rest = select.poll(), {}, None, False, b""
    events.register(pipe, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in events.poll()]
        for descriptor in texts.keys() & ready:
            events.unregister(descriptor)
            os.close(descriptor)
            text = texts.pop(descriptor)
            if not _was_killed(driver):
                unsaid = unsaid or text  # others may die of the first death
        if pipe in ready:
            part = os.read(pipe, 1 << 16)
            if not part:
                return None if is_said else unsaid or KILLED.format(pid=driver)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                pid, _, text = line.decode().partition(" ")
                is_said = is_said or not pid
                with contextlib.suppress(ValueError, ProcessLookupError):
                    texts[descriptor := os.pidfd_open(int(pid))] = text
                    events.register(descriptor, select.POLLIN)


def _was_killed(pid: int) -> bool:
    """True if a signal ended this process, or its parent knows alone what did."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, *_, status = stat.read().rpartition(b") ")[2].split()
    except OSError:
        return True
    return state in (b"Z", b"X") and os.WIFSIGNALED(int(status))


if __name__ == "__main__":
    parent = os.getppid()
    for sent_to_all in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with the driver, not before
        signal.signal(sent_to_all, signal.SIG_IGN)
    sys.path.append(str(pathlib.Path(__file__).parents[4]))
    if unsaid := driver_end(sys.stdin.fileno(), parent):
        sys.stderr.write(f"{unsaid}\n")
    clean(*sys.argv[1:])
