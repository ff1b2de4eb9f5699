"""Comparisons by math-verify from any thread.

Its parser is not made for several threads, and only in the main thread of a process a long comparison can be stopped.
So those of other threads are made in processes of their own, which end with the one that started them.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from typing import Any

from roll.utils.answers.math_equal import COMPARE_LIMIT_S, MathEqual, equal_at_sight

MOST = 4  # processes; each has one comparison at a time
START_LIMIT_S, GRACE_S = 120.0, 5.0


class MathProcesses:
    """Compares as MathEqual does, from any thread. A slow comparison is False, and holds up at most one of `most`
    processes, which are started as they are needed."""

    def __init__(self, tolerance: float | None = None, limit_s: float = COMPARE_LIMIT_S, most: int = MOST) -> None:
        self._tolerance, self._limit_s = tolerance, limit_s
        self._free = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    def __call__(self, truth: str, answer: str) -> bool:
        """Raises ValueError when the reference cannot be read."""
        at_sight = equal_at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        if threading.current_thread() is threading.main_thread():
            return _here(self._tolerance, self._limit_s)(truth, answer)
        with self._free:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or _Process(self._tolerance, self._limit_s)
            with self._lock:
                self._busy.add(process)
            said = process.ask([truth, answer])
            with self._lock:
                self._busy.discard(process)
                if said is None:  # it could not even be stopped: the process is gone
                    return False
                self._idle.append(process)
        if "error" in said:
            raise ValueError(said["error"])
        return bool(said["equal"])

    def close(self) -> None:
        """Ends the processes. What they are comparing is False."""
        with self._lock:
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.close()


class _Process:
    def __init__(self, tolerance: float | None, limit_s: float) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps([tolerance, limit_s])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for who started it
        )
        if self._said(START_LIMIT_S) is None:
            raise RuntimeError("the process that compares answers with math-verify did not start; its log says why")

    def ask(self, question: list[str]) -> dict[str, Any] | None:
        """None if it ended without an answer, as it does where it can only be killed (`serve`)."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self.close()
            return None
        return self._said()

    def kill(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()

    def _said(self, limit_s: float | None = None) -> dict[str, Any] | None:
        assert self._child.stdout is not None
        alarm = threading.Timer(limit_s or 0.0, self._child.kill)
        if limit_s is not None:
            alarm.start()
        line = self._child.stdout.readline()
        alarm.cancel()
        if line.endswith(b"\n"):
            return json.loads(line)
        self.close()
        return None


@functools.cache
def _here(tolerance: float | None, limit_s: float) -> MathEqual:
    return MathEqual(tolerance, limit_s)


def serve(arguments: str) -> None:
    """Answers questions, a line each, until there are no more. One that computes on beyond its limit, in a C extension,
    ends the process."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints
    tolerance, limit_s = json.loads(arguments)
    equal = MathEqual(tolerance, limit_s)
    answers.write(b"{}\n")
    for line in sys.stdin.buffer:
        truth, answer = json.loads(line)
        limit_cpu(time.process_time() + limit_s + GRACE_S)
        try:
            said: dict[str, Any] = {"equal": equal(truth, answer)}
        except ValueError as error:
            said = {"error": str(error)}
        answers.write(json.dumps(said).encode() + b"\n")


def limit_cpu(seconds: float) -> None:
    """Has the kernel end this process when it has computed for so long in all."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))


if __name__ == "__main__":
    serve(sys.argv[1])
