"""A reward model on the trainer's devices: whole runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import END_LIMIT_S, Run, comparable

StartRun = Callable[..., Run]


def settings(model: Path) -> list[str]:
    """Two ranks of a reward model with its weights divided, on the trainer's devices; it sees at most 16 tokens."""
    return [
        "num_gpus_per_node=3",
        "actor_train.device_mapping=[0,1]",
        "actor_train.training_args.gradient_accumulation_steps=2",
        "actor_infer.device_mapping=[2]",
        "rewards.sort.reward=reward_model",
        "~rewards.sort.reward_args.pattern",
        "+rewards.sort.reward_args.max_length=16",
        "~rewards.sort.world_size",
        "+rewards.sort.device_mapping=[0,1]",
        "+rewards.sort.infer_batch_size=48",
        "+rewards.sort.strategy_args.strategy_name=deepspeed_infer",
        "+rewards.sort.strategy_args.strategy_config={zero_optimization: {stage: 3}}",
        "+rewards.sort.model_args.dtype=fp32",
        f"+reward_pretrain={model}",
        "+rewards.sort.query_filter_config={type: std_filter, filter_args: {std_threshold: 0.0001}}",
        "rollout_batch_size=16",
        "num_return_sequences_in_group=8",
        "actor_train.training_args.per_device_train_batch_size=16",
        "eval_steps=2",
    ]


@pytest.mark.slow
def test_a_reward_model_takes_turns_with_the_trainer_and_the_run_resumes_bit_for_bit(
    sort_data: Path, start_run: StartRun, make_tiny_model_dir: Callable[..., Path]
):
    """The numbers of a random model are the rewards, in validation as well."""
    model = make_tiny_model_dir(num_labels=1)
    whole = start_run(sort_data, "tiny_sort", *settings(model), "max_steps=4", "save_steps=2", name="whole").finished()
    rows = whole.metrics
    for step in (1, 2, 3, 4):
        row = rows[step]
        assert row["rollout/reward_std"] > 1e-4 and abs(row["rollout/reward_mean"]) < 2
        assert row["time/reward_s"] > 0 and row["rollout/failed_fraction"] == 0
        assert row["rollout/reward_model_truncated_mean"] > 0.5
        assert row["rollout/kept_groups"] + row["rollout/dropped_groups"] == 16
    assert rows[0]["val/reward_mean"] != rows[4]["val/reward_mean"] != 0
    assert "rewards.sort: models are loaded (2" in whole.text

    checkpoint = f"resume_from_checkpoint={whole.output_dir}/checkpoints/step_000002"
    resumed = start_run(
        sort_data, "tiny_sort", *settings(model), "max_steps=4", "save_steps=-1", checkpoint, name="resumed"
    ).finished()
    for step in (3, 4):
        assert comparable(resumed.metrics[step]) == comparable(rows[step]), f"step {step}"


@pytest.mark.slow
def test_a_reward_model_that_dies_ends_the_run_with_its_name(
    sort_data: Path, start_run: StartRun, make_tiny_model_dir: Callable[..., Path]
):
    model = make_tiny_model_dir(num_labels=1)
    run = start_run(sort_data, "tiny_sort", *settings(model), "max_steps=400", "eval_steps=-1", "save_steps=-1")
    run.wait_for_step(1)
    run.worker("rewards.sort").send_signal(signal.SIGKILL)
    assert run.wait(END_LIMIT_S) == 1, run.text
    assert "rewards.sort rank" in run.text and "died" in run.text
    run.assert_all_gone()
