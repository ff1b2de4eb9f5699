"""Rollouts that run ahead of training on devices that engine and trainer share: what is unfinished when a step has its
groups stays in the engine, and goes on after the publish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_ahead import assert_each_group_once
from tests.helpers.runs import Run

StartRun = Callable[..., Run]
SHARED = ("num_gpus_per_node=1", "actor_infer.device_mapping=[0]", "max_staleness=2", "save_steps=-1")


def staleness(run: Run) -> list[float]:
    return [row["rollout/staleness_max"] for step, row in sorted(run.metrics.items()) if step]


@pytest.mark.slow
def test_an_engine_beside_the_trainers_device_goes_on_with_what_the_other_leaves_and_each_group_is_trained_once(
    sort_data: Path, start_run: StartRun, tmp_path: Path
):
    dumps = tmp_path / "dumps"
    run = start_run(
        sort_data,
        "tiny_sort",
        *SHARED,
        "num_gpus_per_node=2",
        "actor_infer.device_mapping=[0,1]",
        "max_running_requests=16",  # so that engines are at work when a step has its groups
        "async_generation_ratio=0.5",
        "max_steps=8",
        "eval_steps=8",
        "rollout_mock.enable=true",
        f"rollout_mock.dump_dir={dumps}",
        name="partly",
    ).finished()
    assert 1 <= max(staleness(run)) <= 2
    assert_each_group_once(dumps, num_groups=32, steps=8)
    rows = [row for step, row in run.metrics.items() if step]
    assert all(row["sync/away_s"] > 0 for row in rows)
    assert sum(row["rollout/moved_answers"] for row in rows) > 0


@pytest.mark.slow
def test_an_engine_gives_its_device_up_to_trainer_critic_and_reference_in_the_middle_of_answers(
    varied_sort_dir: Path, start_run: StartRun
):
    run = start_run(
        varied_sort_dir,
        "tiny_sort_ppo",
        *SHARED,
        "async_generation_ratio=1",
        "max_steps=6",
        "eval_steps=3",
        "response_length=16",
        "actor_train.device_mapping=[0]",
        "critic.device_mapping=[0]",
        "actor_infer.strategy_args.strategy_name=vllm",
        "add_token_level_kl=true",
        "reference.strategy_args.strategy_name=hf_infer",
        "reference.model_args.dtype=fp32",
        "reference.device_mapping=[0]",
        name="ahead",
    ).finished()
    assert 1 <= max(staleness(run)) <= 2
