"""Which checkpoint `mode: bench` measures, and that it leaves the run beside it alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roll.configs.checks.rollout import bench_problems
from roll.errors import ConfigError
from roll.rl.bench import checkpoint_to_measure, of_checkpoint, summary_lines
from roll.run.saving.checkpoint import Checkpoint, CheckpointStore, DriverState, write_state
from tests.helpers.configs import config

EVAL = {"eval_sets.sums.data_args.file_name": "sums.jsonl"}
NOBODY = 2**22 + 1  # the number of no process


def saved(store: CheckpointStore, step: int) -> Path:
    with store.writing(step) as directory:
        (directory / "hf_model").mkdir()
        (directory / "hf_model" / "config.json").write_text("{}")
        write_state(directory, DriverState(steps_done=step, run={}))
    return store.directory / f"step_{step:06d}"


def test_the_newest_checkpoint_is_measured_and_nothing_is_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, 3)
    newest = saved(store, 5)
    under_way = tmp_path / f".step_000007.partial-{NOBODY}"  # of a run on another machine
    under_way.mkdir()
    found = checkpoint_to_measure(store, True)
    assert found is not None and found.path == newest and found.state.steps_done == 5
    assert under_way.exists()
    assert checkpoint_to_measure(store, False) is None


def test_a_checkpoint_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no checkpoint in .* to measure"):
        checkpoint_to_measure(CheckpointStore(tmp_path), True)
    with pytest.raises(ConfigError, match="resume_from_checkpoint"):
        checkpoint_to_measure(CheckpointStore(tmp_path), str(tmp_path / "step_000001"))


def test_the_engines_start_with_the_policy_of_the_checkpoint_and_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    made = config({**EVAL, "mode": "bench"})
    path = saved(CheckpointStore(tmp_path), 2)
    measured = of_checkpoint(made, Checkpoint(path, DriverState(steps_done=2, run={})))
    args = measured.actor_infer.model_args
    assert args.model_name_or_path == str(path / "hf_model")
    assert args.tokenizer_path == "org/model"
    assert measured.actor_train == made.actor_train
    os.remove(path / "hf_model" / "config.json")
    with pytest.raises(ConfigError, match="holds no hf_model"):
        of_checkpoint(made, Checkpoint(path, DriverState(steps_done=2, run={})))


def test_there_must_be_something_to_measure() -> None:
    assert [problem.text for problem in bench_problems(config({"mode": "bench"}))] == [
        "mode: bench has nothing to measure: validation is missing. Add it."
    ]
    assert not list(bench_problems(config({**EVAL, "mode": "bench"})))
    assert not list(bench_problems(config({})))


def test_figures_are_told_a_line_each() -> None:
    assert list(summary_lines({"val/a/reward_mean": 0.5, "val/b": 1.0})) == [
        "val/a/reward_mean  0.5000",
        "val/b              1.0000",
    ]
