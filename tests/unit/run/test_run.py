"""The loop around the steps: what is saved, and how it ends."""

import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError, ResourceError
from roll.rl.pipeline import VIEW
from roll.run import interrupts
from roll.run.loop import Run
from roll.run.records.run_record import RUN_FILE, read_story
from roll.run.saving.checkpoint import Checkpoint
from roll.run.tracking.local import JsonlTracker, read_metrics
from tests.helpers.cases import cases
from tests.helpers.configs import config


class Counting(Run):
    """Steps that only count; a signal comes at the moment `when`, as often as it comes by, up to `signals` times."""

    view = VIEW

    def __init__(
        self, directory: Path, when: str, signals: int = 1, sent: signal.Signals = signal.SIGINT, **settings: Any
    ):
        places = {"output_dir": str(directory), "logging_dir": str(directory / "logs"), "track_with": ["jsonl"]}
        super().__init__(config({**places, "max_steps": 4, "eval_steps": 1, "save_steps": -1, **settings}))
        self.when, self.signals, self.sent, self.saved = when, signals, sent, list[int]()

    def at(self, moment: str) -> None:
        if moment == self.when and self.signals:
            self.signals -= 1
            signal.raise_signal(self.sent)

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        self.started = False
        if self.when == "prepare":
            raise ConfigError("it cannot go on")

    def build(self) -> None:
        self.started = True
        self.at("build")

    def step(self, step: int) -> dict[str, float]:
        self.at(f"step {step}")
        return {"rollout/reward_mean": float(step)}

    def evaluate(self, steps_done: int) -> dict[str, float]:
        self.at(f"evaluation {steps_done}")
        return {"val/reward_mean": 0.0}

    def _report(self) -> None:
        super()._report()
        self.at(f"report {self.rows[-1][0]}")

    def save(self, directory: Path) -> dict[str, Any]:
        self.at("save")
        self.saved.append(int(directory.name.split("_")[1].split(".")[0]))
        return {}

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        self.at("restore")

    def close(self) -> None:
        self.at("close")


@cases("when, saved")
def test_whenever_ctrl_c_comes_the_last_finished_step_is_saved_once(
    when: str, saved: list[int], tmp_path: Path
) -> None:
    run = Counting(tmp_path, when)
    assert run.run() == (0 if when == "never" else 130)
    assert run.saved == saved


@cases("keys, validated")
def test_the_untrained_model_is_validated_as_val_before_train_says(
    keys: dict[str, Any], validated: list[int], tmp_path: Path
) -> None:
    class Validated(Counting):
        def evaluate(self, steps_done: int) -> dict[str, float]:
            seen.append(steps_done)
            return super().evaluate(steps_done)

    seen: list[int] = []
    assert Validated(tmp_path, "never", **keys).run() == 0
    assert seen == validated


def test_a_resumed_run_is_not_validated_before_its_first_step(tmp_path: Path) -> None:
    class Validated(Counting):
        def evaluate(self, steps_done: int) -> dict[str, float]:
            seen.append(steps_done)
            return super().evaluate(steps_done)

    seen: list[int] = []
    assert Counting(tmp_path, "never", max_steps=2, save_steps=2).run() == 0
    keys = {"resume_from_checkpoint": True, "val_before_train": True, "eval_steps": -1}
    assert Validated(tmp_path, "never", **keys).run() == 0
    assert seen == []


@pytest.mark.parametrize("when", ["step 1", "save"])
def test_a_step_that_was_due_to_be_saved_is_not_saved_again(when: str, tmp_path: Path) -> None:
    run = Counting(tmp_path, when, save_steps=2)
    assert run.run() == 130
    assert run.saved == [2]


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    class Impatient(Counting):
        def step(self, step: int) -> dict[str, float]:
            self.at("step")
            self.at("step")
            return {}

    run = Impatient(tmp_path, "step", signals=2)
    assert run.run() == 130
    assert run.saved == []


def test_the_same_sigterm_from_two_sides_is_one_and_a_later_one_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler signals every process of a job, and the supervisor hands on what it gets."""

    class Twice(Counting):
        def step(self, step: int) -> dict[str, float]:
            self.at("step")
            self.at("step")
            return {}

    run = Twice(tmp_path / "echo", "step", sent=signal.SIGTERM, signals=2)
    assert run.run() == 143
    assert run.saved == [1]
    monkeypatch.setattr(interrupts, "_SAME_MOMENT_S", 0.0)
    run = Twice(tmp_path / "later", "step", sent=signal.SIGTERM, signals=2)
    assert run.run() == 143
    assert run.saved == []


@pytest.fixture
def not_under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_a_cluster_or_a_closed_terminal_sends_ends_a_run_as_ctrl_c_does(
    sent: signal.Signals, code: int, tmp_path: Path, not_under_nohup: None
) -> None:
    run = Counting(tmp_path, "step 1", sent=sent)
    assert run.run() == code
    assert run.saved == [2]
    assert Counting(tmp_path / "build", "build", sent=sent).run() == code


class LongStep(Counting):
    """Its first step gets a signal and does not end by itself before a third one would have come."""

    def step(self, step: int) -> dict[str, float]:
        self.at("step")
        threading.Event().wait(self.seconds)
        return {}

    seconds = 300.0


def test_beyond_interrupt_timeout_the_run_ends_with_what_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = LongStep(tmp_path, "step", sent=signal.SIGTERM, interrupt_timeout=0.1)
    assert run.run() == 143
    assert run.saved == []
    assert "interrupt_timeout of 0.1 s is over" in caplog.text


@pytest.mark.parametrize("sent, limit_s", [(signal.SIGINT, 0.1), (signal.SIGTERM, 0.0)])
def test_ctrl_c_and_a_limit_of_0_let_a_step_take_its_time(
    sent: signal.Signals, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LongStep, "seconds", 0.5)
    run = LongStep(tmp_path, "step", sent=sent, interrupt_timeout=limit_s)
    assert run.run() == 128 + sent
    assert run.saved == [1]


def test_under_nohup_a_closed_terminal_is_no_reason_to_end(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Counting(tmp_path, "step 1", sent=signal.SIGHUP).run() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def logged(directory: Path) -> list[int]:
    return [step for step, _ in read_metrics(directory / "logs" / "metrics.jsonl")]


def test_rows_between_logging_steps_are_logged_if_validated_last_or_interrupted(tmp_path: Path) -> None:
    assert Counting(tmp_path / "a", "never", max_steps=10, logging_steps=4, eval_steps=3).run() == 0
    assert logged(tmp_path / "a") == [0, 3, 4, 6, 8, 9, 10]
    assert Counting(tmp_path / "b", "step 4", max_steps=10, logging_steps=4, eval_steps=-1).run() == 130
    assert logged(tmp_path / "b") == [4, 5]


def test_a_resumed_run_has_the_rows_of_the_whole_run_wherever_they_were_tracked(tmp_path: Path) -> None:
    first = Counting(tmp_path / "a", "never", save_steps=3, logging_steps=4, track_with=["tensorboard"])
    assert first.run() == 0
    checkpoint = tmp_path / "a" / "checkpoints" / "step_000003"
    resumed = Counting(tmp_path / "b", "never", max_steps=5, resume_from_checkpoint=str(checkpoint), track_with=[])
    assert resumed.run() == 0
    assert [step for step, _ in resumed.rows] == [0, 1, 2, 3, 4, 5]
    assert [row["rollout/reward_mean"] for step, row in resumed.rows if step] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_steps", [2, 3])
def test_a_resumed_run_that_has_done_its_steps_says_so_and_starts_nothing(
    max_steps: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Counting(tmp_path, "never", max_steps=3, save_steps=3).run() == 0
    again = Counting(tmp_path, "never", max_steps=max_steps, save_steps=3, resume_from_checkpoint=True)
    assert again.run() == 0
    assert not again.started and again.saved == []
    assert [step for step, _ in again.rows] == [0, 1, 2, 3]
    assert f"nothing is left to do: 3 steps are done and max_steps is {max_steps}." in caplog.text


def test_a_tracker_that_cannot_start_ends_the_run_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JsonlTracker, "__init__", refuse)
    run = Counting(tmp_path, "never")
    monkeypatch.setattr(run, "build", lambda: pytest.fail("built"))
    assert run.run() == 2
    assert "track_with: jsonl cannot start. PermissionError: no login" in caplog.text


def refuse(*arguments: object) -> None:
    raise PermissionError("no login")


def test_trackers_of_a_run_that_is_not_built_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(JsonlTracker, "close", lambda tracker, failed=False: closed.append(failed))
    run = Counting(tmp_path, "never")

    def fail() -> None:
        raise ResourceError("no devices")

    monkeypatch.setattr(run, "build", fail)
    assert run.run() == 1
    assert closed == [True]


def test_what_cannot_go_on_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    run = Counting(tmp_path, "prepare")
    assert run.run() == 2 and not run.started
    assert (run.exit_code, str(run.failure)) == (2, "it cannot go on")


def test_a_logging_dir_that_cannot_be_made_ends_the_run_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where permissions alone do not tell: a full disk, or a file system that takes no directories."""
    (tmp_path / "file").touch()
    run = Counting(tmp_path, "never", logging_dir=str(tmp_path / "file" / "logs"))
    assert run.run() == 2
    assert f"logging_dir: {tmp_path}/file/logs cannot be written: Not a directory" in capsys.readouterr().err


def test_a_run_step_by_step_gives_what_the_whole_run_tracks(tmp_path: Path) -> None:
    run = Counting(tmp_path, "never")
    seen = [(step, metrics["rollout/reward_mean"]) for step, metrics in run.steps()]
    assert seen == [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]
    assert (run.exit_code, run.failure) == (0, None)
    tracked = read_metrics(tmp_path / "logs/metrics.jsonl")
    assert [step for step, _ in tracked] == [step for step, _ in run.rows] == [0, 1, 2, 3, 4]


def test_a_run_that_is_left_after_a_step_closes_once_and_gives_its_signals_back(tmp_path: Path) -> None:
    class Closed(Counting):
        def close(self) -> None:
            closed.append(1)

    closed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    run = Closed(tmp_path, "never")
    steps = run.steps()
    next(steps)
    assert signal.getsignal(signal.SIGINT) != before
    steps.close()
    assert (closed, run.exit_code, run.saved) == ([1], 130, [])
    assert signal.getsignal(signal.SIGINT) == before
    (start,) = read_story(tmp_path / "logs" / RUN_FILE).starts
    assert (start.exit_code, start.cause) == (130, "stopped")


def test_a_checkpoint_between_steps_is_written_once(tmp_path: Path) -> None:
    run = Counting(tmp_path, "never", save_steps=2)
    found = [run.save_now() for step, _ in run.steps() if step in (1, 2)]
    assert [path.name for path in found if path] == ["step_000001", "step_000002"]
    assert run.saved == [1, 2, 4]
