"""Comparisons by math-verify from any thread.

Its parser is not made for several threads, and only in the main thread of a process a long comparison can be stopped.
So each is made in a process of its own, which ends with the one that started it.
"""

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
GRACE_S = 5.0


class MathProcesses:
    """Compares as MathEqual does, from any thread. A slow comparison is False, and holds up at most one of `most`
    processes, which are started as they are needed."""

    def __init__(self, tolerance: float | None = None, limit_s: float = COMPARE_LIMIT_S, most: int = MOST) -> None:
        self._settings = json.dumps([tolerance, limit_s])
        self._tolerance = tolerance
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []

    def __call__(self, truth: str, answer: str) -> bool:
        """Raises ValueError when the reference cannot be read."""
        at_sight = equal_at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        with self._free:
            process = self._idle.pop() if self._idle else self._started()
            said = _ask(process, [truth, answer])
            if said is None:  # it could not even be stopped: the process is gone
                process.communicate()
                return False
            self._idle.append(process)
        if "error" in said:
            raise ValueError(said["error"])
        return bool(said["equal"])

    def close(self) -> None:
        """Ends the processes. What they are comparing is False."""
        self._idle.clear()
        for process in self._all:
            process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for who started it
        )
        self._all.append(process)
        return process


def _ask(process: subprocess.Popen[bytes], question: list[str]) -> dict[str, Any] | None:
    """Return the answer of a process, None if it ended without one, as it does if it can only be killed."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def serve(settings: str) -> None:
    """Answers questions, a line each, until there are no more. One that computes on beyond its limit, in a C extension,
    ends the process."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints
    tolerance, limit_s = json.loads(settings)
    equal = MathEqual(tolerance, limit_s)
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
