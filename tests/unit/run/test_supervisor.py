"""A run that is started again: how often, from where, with which end. The run is a small program of each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from roll.commands.table import main
from roll.run.saving.checkpoint import CheckpointStore
from roll.run.supervisor import Supervisor

TOY = """
import os, shutil, signal, sys, time
from pathlib import Path
place = Path(sys.argv[1])
starts = place / "starts"
number = len(starts.read_text().split("\\n")) if starts.exists() else 1
with starts.open("a") as file:
    file.write(" ".join(sys.argv[2:]) + "\\n")
def save(step):
    (place / "prepared" / f"step_{step:06d}").rename(place / "checkpoints" / f"step_{step:06d}")
"""


class Toy(NamedTuple):
    place: Path
    command: tuple[str, ...]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A program to be written with `writes`; its calls of save(1), save(2), ... publish whole checkpoints."""
    prepared = CheckpointStore(tmp_path / "prepared")
    for step in (1, 2, 3):
        with prepared.writing(step) as directory:
            (directory / "weights").write_text(str(step))
    (tmp_path / "checkpoints").mkdir()
    return Toy(tmp_path, (sys.executable, "-S", str(tmp_path / "toy.py"), str(tmp_path), "run"))


def writes(toy: Toy, text: str) -> None:
    (toy.place / "toy.py").write_text(TOY + textwrap.dedent(text))


def starts(toy: Toy) -> list[str]:
    return (toy.place / "starts").read_text().splitlines()


def ends_with(toy: Toy, max_restarts: int = 2) -> int:
    return Supervisor(toy.command, (toy.place / "checkpoints",), max_restarts, first_wait_s=0.0).run()


def test_a_run_that_ends_well_is_started_once_and_nothing_is_noted(toy: Toy) -> None:
    writes(toy, "sys.exit(0)")
    assert ends_with(toy) == 0
    assert starts(toy) == ["run"]


def test_restarts_without_a_new_checkpoint_are_counted_and_one_begins_the_count_anew(toy: Toy) -> None:
    """Two crashes, one that saved, three more that did not: after it two restarts are left again."""
    writes(toy, "if number == 3: save(1)\nsys.exit(7)")
    assert ends_with(toy) == 7
    assert starts(toy) == ["run"] * 3 + ["run resume_from_checkpoint=true"] * 2


def test_what_another_run_left_there_is_no_progress_of_this_one(toy: Toy) -> None:
    (toy.place / "prepared" / "step_000003").rename(toy.place / "checkpoints" / "step_000003")
    writes(toy, "sys.exit(0 if number == 2 else 1)")
    assert ends_with(toy) == 0
    assert starts(toy) == ["run", "run"]


def test_a_killed_run_goes_on_and_the_reason_is_said(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    writes(
        toy,
        """
        if number == 2:
            sys.exit(0)
        save(2)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert ends_with(toy) == 0
    assert "ended with exit code 137 (SIGKILL). It starts again in 0 s, from step_000002 (1 of 2" in caplog.text


@pytest.mark.parametrize(("code", "num_starts"), [(2, 1), (130, 1), (129, 1), (143, 3), (1, 3), (139, 3)])
def test_only_a_crash_or_a_preemption_is_worth_another_start(toy: Toy, code: int, num_starts: int) -> None:
    writes(toy, f"sys.exit({code})")
    assert ends_with(toy) == code
    assert len(starts(toy)) == num_starts


def test_waits_double_with_each_restart_without_progress(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Supervisor, "_sleep", lambda self, seconds: waited.append(seconds))
    writes(toy, "if number == 3: save(1)\nsys.exit(1)")
    assert Supervisor(toy.command, (toy.place / "checkpoints",), 3, first_wait_s=200.0).run() == 1
    assert waited == [200.0, 300.0, 200.0, 300.0, 300.0]


CATCHING = """
def caught(number, frame):
    with (place / "caught").open("a") as file:
        file.write(signal.Signals(number).name + "\\n")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, caught)
signal.signal(signal.SIGINT, caught)
(place / "ready").write_text("")
while True:
    time.sleep(0.01)  # not for long: a signal just before it would be seen when it ends
"""

SUPERVISING = """
import sys
from pathlib import Path
from roll.run.supervisor import Supervisor
sys.exit(Supervisor(sys.argv[2:], (Path(sys.argv[1]) / "checkpoints",), 5, first_wait_s=0.0).run())
"""


def supervise(toy: Toy, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """In a process of its own, which Ctrl-C reaches also where it does not reach the tests: a shell's background."""
    command = [sys.executable, "-c", SUPERVISING, str(toy.place), *toy.command]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    listens = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command, start_new_session=True, env=environment, stderr=stderr, preexec_fn=listens)


def supervise_ready(toy: Toy) -> subprocess.Popen[bytes]:
    """With the program under way."""
    process = supervise(toy)
    while not (toy.place / "ready").exists():
        assert process.poll() is None
    return process


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_is_handed_on_once_and_nothing_starts_again(toy: Toy, sent: int) -> None:
    writes(toy, CATCHING)
    process = supervise_ready(toy)
    os.killpg(process.pid, sent)  # as a terminal's Ctrl-C comes: to its whole group
    assert process.wait(60) == 128 + sent
    assert (toy.place / "caught").read_text().split() == [signal.Signals(sent).name]
    assert len(starts(toy)) == 1


def test_a_killed_supervisor_takes_the_run_along_which_may_still_save(toy: Toy) -> None:
    writes(toy, CATCHING)
    process = supervise_ready(toy)
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait(60)
    assert psutil.wait_procs([child], timeout=60)[1] == []
    assert (toy.place / "caught").read_text().split() == ["SIGTERM"]


def test_a_yaml_that_cannot_work_is_told_once_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("pipeline: sft\nmax_stepz: 3\n")
    assert main(["run", f"{tmp_path}/mine.yaml", "--max_restarts", "3"]) == 2
    assert capsys.readouterr().err.count("max_stepz: unknown key") == 1


@pytest.mark.parametrize("given", ["-1", "many", "1.5"])
def test_a_number_of_restarts_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "mine.yaml", f"--max_restarts={given}"])
    assert f"'{given}' is no count: 0 or more" in capsys.readouterr().err
