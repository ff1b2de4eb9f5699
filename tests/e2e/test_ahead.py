"""Rollouts that run ahead: the demos learn, nothing is older than the bound, and every task is trained on once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from roll.types.group_codec import group_ids, load_groups, read_groups
from tests.helpers.runs import END_LIMIT_S, Run

StartRun = Callable[..., Run]


@pytest.mark.slow
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
    ).finished()
    assert run.metrics[0]["val/reward_mean"] < 0.15
    assert run.metrics[24]["val/reward_mean"] > 0.5
    assert_never_too_old(run, steps=24)
    assert_each_group_once(dumps, num_groups=32, steps=24)


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
    ).finished()
    before, after = (run.metrics[step]["val/success_mean"] for step in (0, 12))
    assert after > before + 0.25, (before, after)
    assert_never_too_old(run, steps=12)
    assert_each_group_once(dumps, num_groups=16, steps=12)


@pytest.mark.parametrize(
    "sent", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT], ids=lambda sent: sent.name
)
def test_a_run_that_ended_with_groups_in_flight_goes_on_with_what_was_finished_and_trains_each_once(
    sent: signal.Signals, sort_data: Path, start_run: StartRun, tmp_path: Path
):
    """Finished groups come back as they were; those that were under way are sampled again.
    Engines sample few answers at once, and no whole groups, so that there is always something in flight. No token is
    too old, before the end and after it."""
    dumps = tmp_path / "dumps"
    settings = (
        "max_steps=7",
        "eval_steps=-1",
        "save_steps=3",
        "max_running_requests=13",
        "rollout_mock.enable=true",
        f"rollout_mock.dump_dir={dumps}",
    )
    run = start_run(sort_data, "tiny_sort_async", *settings)
    run.wait_for_step(4)
    run.process.send_signal(sent)
    assert run.wait(END_LIMIT_S) == (130 if sent == signal.SIGINT else -sent), run.text
    run.kill()
    checkpoint = max((run.output_dir / "checkpoints").glob("step_*"))
    finished = load_groups(checkpoint / "rollouts")
    assert finished
    resumed = start_run(sort_data, "tiny_sort_async", *settings, "resume_from_checkpoint=true").finished()
    assert_each_group_once(dumps, num_groups=32, steps=7)
    groups = [group for file in dumps.glob("step_*.npz") for group in read_groups(file)]
    trained = {(group.group_id, row.index): row for group in groups for row in group.trajectories}
    for saved, row in [(group.group_id, row) for group in finished for row in group.trajectories]:
        for name in ("input_ids", "log_probs", "policy_versions"):
            np.testing.assert_array_equal(getattr(trained[saved, row.index], name), getattr(row, name))
    assert_never_too_old(resumed, steps=7)


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
