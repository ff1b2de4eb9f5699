"""The death of Ray's own processes."""

import queue
import subprocess
import sys

import pytest

from roll.distributed.executor.processes.launch import when_one_dies

ENDINGS = {"os.kill(os.getpid(), 9)": "signal 9", "os.kill(os.getpid(), 11)": "signal 11", "sys.exit(3)": "exit code 3"}


@pytest.mark.parametrize("end", ENDINGS)
def test_a_death_is_told_as_what_it_is(end: str) -> None:
    texts: queue.Queue[str] = queue.Queue()
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); input(); {end}"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    when_one_dies({process.pid: "Ray's raylet"}, texts.put)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    text = texts.get(timeout=60)
    assert process.wait(60) is not None
    said = f"Ray's raylet on this host died (pid {process.pid}, {ENDINGS[end]}): no worker can be reached without it."
    assert text.startswith(said)
