"""Checks that misbehave are told as what they are, and the others go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.gpu import machine
from tests.gpu.check import Check, Limit, Machine, Outcome
from tests.gpu.runner import REPOSITORY, Runner

HERE = "tests.unit.gpu.misbehaving"
TWO = Machine("cpu", 2, frozenset())


def check(name: str, function: str, limits: dict[str, Limit] | None = None, **options: object) -> Check:
    return Check(name, "", "", f"{HERE}:{function}", limits or {}, **options)  # type: ignore[arg-type]


def run(directory: Path, *checks: Check) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in Runner(TWO, ["0", "1"], directory, lambda text: None).run(checks)}


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_failing_hanging_and_crashing_checks_are_told_apart_and_the_others_pass(tmp_path: Path):
    started = tmp_path / "started"
    found = run(
        tmp_path / "out",
        check("fails", "fails"),
        check("hangs", "hangs", arguments={"started": str(started)}, limit_s=15),
        check("dies", "dies"),
        check("leaves", "leaves"),
        check("cannot", "cannot"),
        check("large", "tells", {"size": Limit("of the device", most=1)}, arguments={"size": 2}),
        check("sound", "tells", {"size": Limit("of the device", most=1)}, arguments={"size": 1}, most_gpus=2),
        check("needs more", "tells", gpus=3),
    )
    assert {name: (outcome.state, outcome.reason) for name, outcome in found.items()} == {
        "fails": ("failed", "ValueError: of which the last is the cause"),
        "hangs": ("timed out", "not done after 15 s"),
        "dies": ("crashed", "ended by SIGKILL"),
        "leaves": ("crashed", "ended with status 3 and without an answer"),
        "cannot": ("skipped", "the driver is too old"),
        "large": ("failed", "size is 2, must be at most 1 (of the device)"),
        "sound": ("passed", ""),
        "needs more": ("skipped", "needs 3 GPUs, there are 2"),
    }
    assert found["sound"].figures == {"size": 1, "devices": 2}
    assert gone(int(started.read_text()))
    assert "time.sleep(1000)" in misbehaving_line(tmp_path / "out" / "hangs" / "log.txt")
    assert "several lines," in (tmp_path / "out" / "fails" / "log.txt").read_text()


def misbehaving_line(log: Path) -> str:
    """The line of this folder's helper that the traceback in a log points to."""
    place = next(line for line in log.read_text().splitlines() if "misbehaving.py" in line)
    number = int(place.split("line ")[1].split()[0])
    return (Path(__file__).parent / "misbehaving.py").read_text().splitlines()[number - 1]


def test_checks_share_a_gpu_but_for_one_that_wants_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: "")  # a GPU of this machine may be in use
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    checks = [
        check("a", "waits_for_another", arguments={"mine": a, "other": b}),
        check("b", "waits_for_another", arguments={"mine": b, "other": a}),
        check("alone", "tells", alone=True),
    ]
    said: list[str] = []
    runner = Runner(Machine("cuda", 1, frozenset()), ["0"], tmp_path / "out", said.append, sharing=3)
    assert {outcome.state for outcome in runner.run(checks)} == {"passed"}
    assert said == ["a: started", "b: started", "alone: started"]


def test_a_check_that_measures_fails_where_others_use_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0, 3, 30000\necho 1, [N/A], 500\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_LOOK_S", 0.0)
    runner = Runner(Machine("cuda", 1, frozenset()), ["0"], tmp_path / "out", lambda text: None)
    (found,) = runner.run([check("measures", "tells", alone=True)])
    assert (found.state, found.seconds) == ("failed", 0.0)
    assert found.reason == "figures would be void, since other programs use the GPU: GPU 0 at 3 % with 30000 MiB"


def test_a_check_that_would_not_be_done_in_time_is_not_begun(tmp_path: Path):
    checks = [check("long", "tells", expected_s=100), check("short", "tells", expected_s=1)]
    runner = Runner(TWO, ["0", "1"], tmp_path / "out", lambda text: None, limit_s=60)
    found = {outcome.name: outcome for outcome in runner.run(checks)}
    assert found["long"] == Outcome("long", "skipped", "no time for it (--minutes 1)")
    assert found["short"].state == "passed"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_ends_everything_and_the_report_says_what_was_not_done(tmp_path: Path):
    started, out = tmp_path / "started", tmp_path / "out"
    program = f"""
import signal
import sys
from tests.gpu.__main__ import main
from tests.gpu.check import Check
signal.signal(signal.SIGINT, signal.SIG_DFL)  # nohup and shells in the background start programs with these ignored
hangs = Check("hangs", "", "", "{HERE}:hangs", {{}}, {{"started": {str(started)!r}}})
later = Check("later", "", "", "{HERE}:tells", {{}}, gpus=2)
sys.exit(main(["--device", "cpu", "--out", {str(out)!r}], [hangs, later]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: started.exists() and bool(started.read_text()))
    for _ in range(3):  # who is impatient leaves nothing behind either
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, text
    assert "2 interrupted" in text
    assert gone(int(started.read_text()))
    assert '"later",\n   "state": "interrupted"' in (out / "report.json").read_text()
