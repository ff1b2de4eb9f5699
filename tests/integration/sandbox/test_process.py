"""What a job's end looks like from outside, and that nothing of a job outlives it."""

import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from roll.distributed.executor.processes.cleaner import MARK
from roll.utils.sandbox.job import PASSED_VARIABLES, Namespaces
from roll.utils.sandbox.process import Process, SandboxError, run
from roll.utils.timing import TimeLimitReached, call_within
from tests.integration.sandbox.conftest import LIMITS, Run, python_job

FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(10**6)"


def processes_with(text: str) -> list[int]:
    """Those of this machine that have this in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile
            continue
    return found


def wait_until_gone(text: str) -> None:
    deadline = time.monotonic() + 300
    while processes_with(text):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.02)


def test_output_input_and_exit_code_of_megabytes_come_back(run_python: Run) -> None:
    finished = run_python("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)")
    assert (finished.ending, finished.code, finished.stdout, finished.stderr) == ("exit", 7, b"out\n", b"err\n")
    assert not finished.is_fine
    code = "import sys, hashlib\nprint(sys.argv[1], len(sys.stdin.buffer.read()))"
    finished = run_python(code, "a b", stdin=bytes(3_000_000))
    assert finished.is_fine and finished.stdout == b"a b 3000000\n"
    assert run_python("print('done')", stdin=bytes(3_000_000)).stdout == b"done\n"


def test_a_caller_that_ignores_its_children_learns_how_the_job_ended(run_python: Run) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        finished = run_python("import sys\nprint('out')\nsys.exit(7)")
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert (finished.ending, finished.code, finished.stdout) == ("exit", 7, b"out\n")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM"])
def test_a_signal_is_128_and_its_number(run_python: Run, name: str) -> None:
    finished = run_python(f"import os, signal\nos.kill(os.getpid(), signal.{name})")
    assert (finished.ending, finished.code) == ("exit", 128 + getattr(signal, name))


def test_floods_loops_and_waits_end_at_their_limits(run_python: Run) -> None:
    finished = run_python("while True: print('x' * 1000)")
    assert finished.ending == "output"
    assert LIMITS.output_bytes < len(finished.stdout) < LIMITS.output_bytes + 70_000
    finished = run_python("import sys\nfor i in range(100_000): print('line', i, file=sys.stderr)")
    assert finished.is_fine and finished.stderr.endswith(b"line 99999\n") and len(finished.stderr) <= 8192
    assert run_python("while True: pass", limits=replace(LIMITS, cpu_s=0.5)).ending == "time"
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    finished = run_python(code, limits=replace(LIMITS, cpu_s=0.5))
    assert (finished.ending, finished.code) == ("exit", 128 + signal.SIGKILL)
    assert run_python(FOREVER, limits=replace(LIMITS, wall_s=3)).ending == "time"
    finished = run_python("try:\n    x = bytearray(600 * 2**20)\nexcept MemoryError:\n    print('no memory')")
    assert finished.stdout == b"no memory\n"


def test_jobs_that_never_ran_or_were_left_leave_nothing(means: Namespaces) -> None:
    job = replace(python_job("print(1)"), command=("/usr/bin/no-such-program",))
    with pytest.raises(SandboxError, match="No such file"):
        run(job, means)
    job = python_job("print(1)")
    absent = replace(job, view=replace(job.view, paths=(*job.view.paths, "/no/such/folder")))
    with pytest.raises(SandboxError, match="/no/such/folder"):
        run(absent, means)
    token = uuid.uuid4().hex
    with pytest.raises(TimeLimitReached):
        call_within(2.0, lambda: run(python_job(FOREVER, token), means))
    assert processes_with(token) == []
    token = uuid.uuid4().hex
    with Process(python_job(FOREVER, token), means) as process:
        assert process.stdout.read(2) == b"up"
        assert processes_with(token)
    assert processes_with(token) == []


def test_the_end_of_the_process_that_started_it_ends_the_job(means: Namespaces) -> None:
    """Killed without a word, as a worker that hangs is."""
    token = uuid.uuid4().hex
    code = (
        "import sys\n"
        "from roll.utils.sandbox.job import Namespaces\n"
        "from roll.utils.sandbox.process import Process\n"
        "from tests.integration.sandbox.conftest import python_job\n"
        f"with Process(python_job({FOREVER!r}, {token!r}), {means!r}) as process:\n"
        "    print(process.stdout.read(2), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"b'up'\n"
        assert processes_with(token)
        owner.kill()
        wait_until_gone(token)


def test_no_descriptor_and_no_child_is_left(run_python: Run) -> None:
    run_python("print(1)")
    gc.collect()  # it would close meanwhile what other tests left open
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_python("print(1)")
    assert sorted(os.listdir("/proc/self/fd")) == before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    assert [pid for pid in children.split() if "sandbox" in Path(f"/proc/{pid}/cmdline").read_text()] == []


def test_the_cleaner_s_mark_goes_with_the_sandbox() -> None:
    assert (MARK,) == PASSED_VARIABLES
