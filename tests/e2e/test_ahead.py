"""Rollouts that run ahead: the demos learn, nothing is older than the bound, and every task is trained on once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roll.pipeline.rollout_files import group_ids
from tests.e2e.conftest import Run

StartRun = Callable[..., Run]


def test_the_demo_learns_from_groups_that_ran_ahead_and_trains_each_once(
    sort_data: Path, start_run: StartRun, tmp_path: Path
):
    """24 of the demo's 100 steps. Validation in the middle is played beside groups in flight."""
    dumps = tmp_path / "dumps"
    run = start_run(
        sort_data,
        "tiny_sort_async",
        "max_steps=24",
        "eval_steps=12",
        "save_steps=-1",
        "rollout_mock.enable=true",
        f"rollout_mock.dump_dir={dumps}",
    )
    assert run.wait() == 0, run.text
    assert run.metrics[0]["val/reward_mean"] < 0.15
    assert run.metrics[24]["val/reward_mean"] > 0.5
    assert_never_too_old(run, steps=24)
    assert_each_group_once(dumps, num_groups=32, steps=24)
    run.assert_all_gone()


@pytest.mark.slow
def test_the_agentic_demo_learns_from_episodes_that_ran_ahead(lake_data: Path, start_run: StartRun, tmp_path: Path):
    """12 of the demo's 40 steps."""
    dumps = tmp_path / "dumps"
    run = start_run(
        lake_data,
        "tiny_frozen_lake_async",
        "max_steps=12",
        "eval_steps=6",
        "save_steps=-1",
        "rollout_mock.enable=true",
        f"rollout_mock.dump_dir={dumps}",
        example="tiny-frozen-lake",
        pipeline="agentic",
    )
    assert run.wait() == 0, run.text
    before, after = (run.metrics[step]["val/success_mean"] for step in (0, 12))
    assert after > before + 0.25, (before, after)
    assert_never_too_old(run, steps=12)
    assert_each_group_once(dumps, num_groups=16, steps=12)
    run.assert_all_gone()


def assert_never_too_old(run: Run, steps: int) -> None:
    """Some tokens are of older weights, none of weights more than 2 steps old; of those that are not, engine and
    trainer say the same but for rounding: no key or value of old weights is left."""
    rows = [row for step, row in run.metrics.items() if step]
    assert len(rows) == steps
    ages = [row["rollout/staleness_max"] for row in rows]
    assert ages[0] == 0 and 1 <= max(ages) <= 2, ages
    assert all(row["rollout/staleness_mean"] <= row["rollout/staleness_max"] for row in rows)
    assert "train_infer/log_prob_diff_mean/lag_1" in rows[-1]
    gaps = [row["train_infer/log_prob_diff_max"] for row in rows if "train_infer/log_prob_diff_max" in row]
    assert gaps and max(gaps) < 1e-4, gaps


def assert_each_group_once(dumps: Path, num_groups: int, steps: int) -> None:
    """The groups of all steps are the first ones of the data, each in one step."""
    files = sorted(dumps.glob("step_*.npz"))
    assert len(files) == steps
    trained = [number for file in files for number in group_ids(file)]
    assert sorted(trained) == list(range(num_groups * steps))
