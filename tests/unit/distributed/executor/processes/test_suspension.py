"""Suspended workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from roll.distributed.executor.processes.cluster import SuspensionWatch, suspended_processes
from roll.distributed.executor.processes.resource_manager import RUN_ID, RUN_MARK

# says so, starts a child of its own, says its pid and waits
WORKER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
Start = Callable[[dict[str, str]], tuple[subprocess.Popen[str], int]]


def of_run(role: str, run: str = RUN_ID) -> dict[str, str]:
    return {"ROLL_ROLE": role, RUN_MARK: run}


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[tuple[subprocess.Popen[str], int]] = []

    def start(variables: dict[str, str]) -> tuple[subprocess.Popen[str], int]:
        """A process and its child."""
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER], env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        started.append((process, int(process.stdout.readline())))
        return started[-1]

    yield start
    for process, child in started:
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)


def test_a_suspended_worker_is_killed_and_neither_a_running_one_nor_what_is_not_ours(start: Start) -> None:
    suspended, _ = start(of_run("reference"))
    running, childs_child = start(of_run("critic"))
    of_another_run, _ = start(of_run("reference", "another"))
    own, _ = start({})
    for pid in (suspended.pid, childs_child, of_another_run.pid, own.pid):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED) if pid != childs_child else None
    assert suspended_processes(RUN_ID, {own.pid: "Ray's raylet"}) == {
        suspended.pid: "a worker of reference",
        own.pid: "Ray's raylet",
    }
    watch = SuspensionWatch(0.2, pids={})
    try:
        assert suspended.wait(60) == -signal.SIGKILL
        assert (running.poll(), of_another_run.poll(), own.poll()) == (None, None, None)
    finally:
        watch.close()


def test_a_worker_that_goes_on_before_the_limit_stays(start: Start) -> None:
    worker, _ = start(of_run("reference"))
    watch = SuspensionWatch(3600.0, pids={})
    try:
        os.kill(worker.pid, signal.SIGSTOP)
        os.kill(worker.pid, signal.SIGCONT)
        assert suspended_processes(RUN_ID, {}) == {}
        assert worker.poll() is None
    finally:
        watch.close()
