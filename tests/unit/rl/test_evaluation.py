"""Figures of evaluations."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from roll.configs.checks.rollout import bench_problems
from roll.errors import ConfigError
from roll.rl.bench import checkpoint_to_measure, of_checkpoint, summary_lines
from roll.rl.evaluation import mean_of_sets, pass_at_k, validation_metrics
from roll.run.saving.checkpoint import Checkpoint, CheckpointStore, DriverState, write_state
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from tests.helpers.configs import config


def group(rewards: list[float | None], tag: str = "a") -> TrajectoryGroup:
    prompt = np.array([1], np.int32)
    generation = Generation(
        np.array([2, 3], np.int32),
        np.zeros(2, np.float32),
        np.zeros(2, np.int32),
        "stop",
    )
    trajectories = tuple(
        Trajectory.from_generation(
            prompt,
            generation,
            r if r is not None else 0.0,
            index=i,
            response_text="",
            failure="timeout" if r is None else None,
        )
        for i, r in enumerate(rewards)
    )
    return TrajectoryGroup(Task("t", "d", prompt, payload={"tag": tag}), 0, trajectories)


@pytest.mark.parametrize(("solved", "k"), [(0, 1), (1, 2), (2, 2), (3, 2), (4, 4), (1, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solved_answer(solved: int, k: int):
    answers = [1] * solved + [0] * (4 - solved)
    subsets = list(combinations(answers, k))
    assert pass_at_k(4, solved, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_means_are_per_tag_and_success_is_what_the_environment_says():
    metrics = validation_metrics([group([1, 0, None, 1]), group([0, 0, 0, 0], tag="b")])
    assert metrics["val/reward_mean"] == 2 / 8
    assert metrics["val/reward_mean/a"] == 0.5 and metrics["val/reward_mean/b"] == 0
    assert metrics["val/failed_fraction"] == 1 / 8
    assert metrics["val/pass_at_2"] == pytest.approx((1 - 1 / 6) / 2) and metrics["val/pass_at_4/a"] == 1
    assert metrics["val/response_length_mean"] == 2
    assert set(validation_metrics([group([1])])) == {
        "val/reward_mean",
        "val/response_length_mean",
        "val/failed_fraction",
    }
    assert validation_metrics([]) == {}
    # A format penalty leaves a won game below 1; returns above 1 need not be wins.
    made = group([0.9, 3.0])
    won = replace(made.trajectories[0], metrics={"success": 1.0})
    lost = replace(made.trajectories[1], metrics={"success": 0.0})
    assert validation_metrics([replace(made, trajectories=(won, lost))])["val/pass_at_2"] == 1
    won = replace(won, metrics={"success": 0.0})
    assert validation_metrics([replace(made, trajectories=(won, lost))])["val/pass_at_2"] == 0
    assert mean_of_sets({"small": 0.5, "large": 1.0}) == {"val/reward_mean": 0.75}
    assert mean_of_sets({}) == {}


def test_a_named_set_has_the_metrics_of_a_validation_under_its_name():
    groups = [group([1.0, 0.0, 0.0, 1.0]), group([0.0, 0.0, 1.0, None])]
    plain, named = validation_metrics(groups), validation_metrics(groups, "sums", (1, 3))
    assert named["val/sums/reward_mean"] == plain["val/reward_mean"] == 3 / 8
    assert named["val/sums/failed_fraction"] == 1 / 8
    subsets = [list(combinations(answers, 3)) for answers in ([1, 0, 0, 1], [0, 0, 1, 0])]
    counted = np.mean([np.mean([any(s) for s in found]) for found in subsets])
    assert named["val/sums/pass_at_3"] == pytest.approx(counted)
    assert named["val/sums/pass_at_1"] == pytest.approx(3 / 8), "the mean over all answers"
    assert {name.removeprefix("val/sums/") for name in named} == {
        "reward_mean", "response_length_mean", "failed_fraction", "pass_at_1", "pass_at_3",
    }  # fmt: skip


def test_groups_with_fewer_answers_than_k_have_no_say_in_pass_at_k():
    """A group may be short where attempts were lost. Nothing is known of four answers where there are two."""
    groups = [group([1.0, 0.0, 0.0, 0.0]), group([0.0, 0.0]), group([1.0, 1.0, 1.0], tag="b")]
    metrics = validation_metrics(groups, pass_at=(1, 3, 4, 8))
    assert metrics["val/pass_at_1"] == pytest.approx((1 / 4 + 0 + 1) / 3)
    assert metrics["val/pass_at_3"] == pytest.approx((3 / 4 + 1) / 2)
    assert metrics["val/pass_at_4"] == metrics["val/pass_at_4/a"] == 1
    assert metrics["val/short_groups_fraction"] == 1  # of 8 answers
    assert not {"val/pass_at_8", "val/pass_at_8/a", "val/pass_at_4/b"} & metrics.keys()
    assert validation_metrics(groups, pass_at=(1, 3))["val/short_groups_fraction"] == pytest.approx(1 / 3)
    assert "val/short_groups_fraction" not in validation_metrics(groups, pass_at=(1, 2))
    assert "val/pass_at_2" in validation_metrics(groups) and "val/pass_at_4" not in validation_metrics(groups)


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


def test_there_must_be_something_to_measure_in_a_line_each() -> None:
    assert [problem.text for problem in bench_problems(config({"mode": "bench"}))] == [
        "mode: bench has nothing to measure: validation is missing. Add it."
    ]
    assert not list(bench_problems(config({**EVAL, "mode": "bench"})))
    assert not list(bench_problems(config({})))
    assert list(summary_lines({"val/a/reward_mean": 0.5, "val/b": 1.0})) == [
        "val/a/reward_mean  0.5000",
        "val/b              1.0000",
    ]
