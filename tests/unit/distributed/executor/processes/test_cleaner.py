"""The process that cleans up after a run."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from roll.distributed.executor.processes import cleaner
from roll.distributed.executor.processes.launch import CleanerProcess
from roll.distributed.executor.weights.sender import MemoryRouteSender
from roll.distributed.weights.bucket import MemoryBucket, index_bucket


def written_in_a_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryRouteSender, Path]:
    """A bucket in shared memory that nobody has read yet."""
    monkeypatch.setenv(cleaner.MARK, str(directory))
    lane, bucket = MemoryRouteSender([(0, 0)]), [("a", torch.ones(4))]
    source = lane.write(bucket, index_bucket(bucket), 0)[0, 0]
    monkeypatch.delenv(cleaner.MARK)
    assert isinstance(source, MemoryBucket)
    return lane, Path(cleaner.SHARED_MEMORY) / source.segment


def test_shared_memory_that_a_run_left_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / f"roll-{tmp_path.name}-{name}" for name in ("mine", "other")]
    for directory in directories:
        directory.mkdir()
    (lane, mine), (other_lane, others) = (written_in_a_run(directory, monkeypatch) for directory in directories)
    try:
        assert mine.exists()
        command = [sys.executable, "-S", "-E", cleaner.__file__, str(directories[0])]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=120)
        assert not mine.exists() and not directories[0].exists()
        assert others.exists() and directories[1].exists()
    finally:
        lane.close()
        other_lane.close()


@pytest.mark.parametrize("writable", [True, False])
def test_what_workers_printed_is_kept_however_the_driver_ended(writable: bool, tmp_path: Path) -> None:
    """Logs that cannot be written keep nothing else from being removed."""
    directory, logs = tmp_path / "run", tmp_path / "logs"
    source = directory / cleaner.RAY / "session_latest" / "logs"
    source.mkdir(parents=True)
    (source / "worker-1.out").write_text(":worker:rewards.sort-0\nlast words\n")
    if not writable:
        logs.write_text("a file")
    command = [sys.executable, "-S", "-E", cleaner.__file__, str(directory), str(logs)]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True, timeout=120
    )
    assert not directory.exists()
    assert ("could not be saved in" in ended.stderr) is not writable
    if writable:
        assert (logs / "rewards.sort-0.out").read_text() == "last words\n"


def marked(directory: Path, code: str) -> tuple[subprocess.Popen[str], str]:
    """A process of the run with this directory, and the first line that it prints."""
    environment = os.environ | {cleaner.MARK: str(directory)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_driver_cleans_up_itself_if_the_cleaner_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    running = CleanerProcess(str(directory))
    process, _ = marked(directory, "import time; print(flush=True); time.sleep(600)")
    os.kill(running.pid, signal.SIGKILL)
    running.end()
    assert process.wait(60) == -signal.SIGKILL
    assert not directory.exists()


def watched_by(pid: int) -> int:
    """How many processes that one watches; it may open and close files meanwhile."""
    files, found = Path(f"/proc/{pid}/fd"), 0
    with suppress(OSError):
        for name in os.listdir(files):
            with suppress(OSError):
                found += os.readlink(files / name) == "anon_inode:[pidfd]"
    return found


@pytest.mark.parametrize("is_said", [False, True])
def test_the_cleaner_says_what_died_before_a_driver_that_could_not(
    is_said: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = CleanerProcess(str(tmp_path / "run"))
    mortal = subprocess.Popen(["sleep", "600"])
    try:
        running.report_dead({mortal.pid: "It died.", os.getpid(): "This one lives."})
        wait_until(lambda: watched_by(running.pid) == 2)
        if is_said:
            running.nothing_to_say()
    finally:
        mortal.kill()
        mortal.wait()
    wait_until(lambda: watched_by(running.pid) == 1)
    running.end()
    assert capfd.readouterr().err == ("" if is_said else "It died.\n")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("is alive", "Ray's raylet died."),
        ("ended itself", "Ray's raylet died."),
        ("was killed", "ended without a word: it was killed, or it crashed."),
    ],
)
def test_what_dies_with_a_killed_driver_is_not_its_cause(ending: str, said: str) -> None:
    """Linux ends Ray's processes, before the pipe of a killed driver is closed; Ray itself ends a driver whose raylet
    died, by an exit code."""
    code = "import sys, time; sys.stdin.read(); sys.exit(1)"
    driver = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    mortal = subprocess.Popen(["sleep", "600"])
    reading, writing = os.pipe()
    try:
        os.write(writing, f"{mortal.pid} Ray's raylet died.\n".encode())
        if ending == "was killed":
            driver.kill()
        elif ending == "ended itself":
            assert driver.stdin is not None
            driver.stdin.close()
        if ending != "is alive":
            os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        found: list[str | None] = []
        waiting = threading.Thread(target=lambda: found.append(cleaner.driver_end(reading, driver.pid)))
        waiting.start()
        wait_until(lambda: watched_by(os.getpid()) > 0)
        mortal.kill()
        wait_until(lambda: watched_by(os.getpid()) == 0)
        os.close(writing)
        waiting.join(60)
        assert len(found) == 1 and found[0] is not None and said in found[0]
    finally:
        os.close(reading)
        for process in (driver, mortal):
            process.kill()
            process.wait()
