"""The loop around the steps: what is saved, and how it ends."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from roll.pipeline.run import Run
from tests.helpers.configs import config


class Counting(Run):
    """Steps that only count; a signal comes at the moment `when`, as often as it comes by, up to `signals` times."""

    def __init__(self, directory: Path, when: str, signals: int = 1, **settings: Any):
        places = {"output_dir": str(directory), "logging_dir": str(directory / "logs"), "track_with": ["jsonl"]}
        super().__init__(config({**places, "max_steps": 4, "eval_steps": 1, "save_steps": -1, **settings}))
        self.when, self.signals, self.saved = when, signals, list[int]()

    def at(self, moment: str) -> None:
        if moment == self.when and self.signals:
            self.signals -= 1
            signal.raise_signal(signal.SIGINT)

    def build(self) -> None:
        self.at("build")

    def step(self, step: int) -> dict[str, float]:
        self.at(f"step {step}")
        return {"rollout/reward_mean": float(step)}

    def evaluate(self, steps_done: int) -> dict[str, float]:
        self.at(f"evaluation {steps_done}")
        return {"val/reward_mean": 0.0}

    def _report(self, steps_done: int, metrics: Mapping[str, float]) -> None:
        super()._report(steps_done, metrics)
        self.at(f"report {steps_done}")

    def save(self, directory: Path) -> dict[str, Any]:
        self.saved.append(int(directory.name.split("_")[1].split(".")[0]))
        return {}

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.at("close")


@pytest.mark.parametrize(
    "when, saved",
    [
        ("build", []),
        ("evaluation 0", []),
        ("step 1", [2]),
        ("evaluation 2", [2]),
        ("report 2", [2]),
        ("report 4", [4]),
        ("never", []),
    ],
)
def test_whenever_ctrl_c_comes_the_last_finished_step_is_saved_once(
    when: str, saved: list[int], tmp_path: Path
) -> None:
    run = Counting(tmp_path, when)
    assert run.run() == (0 if when == "never" else 130)
    assert run.saved == saved


def test_a_step_that_was_due_to_be_saved_is_not_saved_again(tmp_path: Path) -> None:
    run = Counting(tmp_path, "step 1", save_steps=2)
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
