"""Rollouts that a run records and another is trained on; weights that reach the engine every second step; a rollout
loop of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable

StartRun = Callable[..., Run]
SETTINGS = (
    "max_steps=4",
    "eval_steps=-1",
    "save_steps=-1",
    "actor_train.training_args.warmup_steps=0",
    "+actor_train.model_update_frequency=2",
    "+force_disable_old_logprobs_recompute=true",
    "+rollout_mock.enable=true",
)


@pytest.mark.slow
def test_recorded_rollouts_teach_what_they_taught_when_they_were_sampled(
    sort_data: Path, start_run: StartRun, tmp_path: Path
):
    place = f"+rollout_mock.dump_dir={tmp_path}/mock"
    loop = "+user_defined_rollout_loop_cls=tests.e2e.own_loop:SecondHalf"
    dumped = start_run(sort_data, "tiny_sort", *SETTINGS, place, "+rollout_mock.mode=dump", loop, name="dumped")
    dumped.own_metrics = {"rollout/paid_share_mean"}
    dumped.finished()
    files = sorted(path.name for path in (tmp_path / "mock").iterdir())
    assert files == [f"step_{step:06d}.npz" for step in (1, 2, 3, 4)]
    rows = [dumped.metrics[step] for step in (1, 2, 3, 4)]
    assert [row["rollout/staleness_max"] for row in rows] == [0, 1, 0, 1]
    assert {row["rollout/paid_share_mean"] for row in rows} == {0.75}
    fresh, stale = rows[0::2], rows[1::2]
    assert max(row["train_infer/log_prob_diff_max"] for row in fresh) < 1e-3
    assert min(row["train_infer/log_prob_diff_max"] for row in stale) > 1e-3
    assert max(abs(row["actor/ratio_max"] - 1) for row in fresh) < 1e-3
    assert min(row["actor/ratio_max"] for row in stale) > 1 + 1e-3  # against what the engine sampled from
    assert "disagree about the sampled tokens" not in dumped.text  # weights that differ on purpose

    no_reward = "rewards.sort.reward_args.pattern=nothing is scored"
    replayed = start_run(sort_data, "tiny_sort", *SETTINGS, place, "+rollout_mock.mode=mock", no_reward, name="mock")
    replayed.own_metrics = {"rollout/paid_share_mean"}
    replayed.finished()
    for step in (1, 2, 3, 4):
        assert comparable(replayed.metrics[step]) == comparable(dumped.metrics[step]), f"step {step}"

    longer = ("max_steps=5", "+rollout_mock.mode=mock")
    beyond = start_run(sort_data, "tiny_sort", *SETTINGS[1:], *longer, place, name="beyond")
    beyond.own_metrics = {"rollout/paid_share_mean"}
    assert beyond.wait() == 2, beyond.text
    assert "rollout_mock.dump_dir: group 128, of step 5, is not among the recorded ones (0 to 127)" in beyond.text
