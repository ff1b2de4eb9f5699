"""Engines that are killed amid rollouts that run ahead: responses in flight go on elsewhere or begin anew, and every
group is trained once, wherever engines and trainer stand."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from roll.types.group_codec import group_ids
from tests.e2e.faults import SMALL
from tests.helpers.process_table import name_of
from tests.helpers.runs import END_LIMIT_S, Run

StartRun = Callable[..., Run]
PLACES = {
    "only engine": ("async_generation_ratio=1",),
    "disjoint": ("num_gpus_per_node=3", "actor_infer.device_mapping=[1,2]", "async_generation_ratio=1"),
    "shared": (
        "num_gpus_per_node=2",
        "actor_train.device_mapping=[0,1]",
        "actor_infer.device_mapping=[0,1]",
        "actor_train.training_args.per_device_train_batch_size=8",
        "async_generation_ratio=0.5",
    ),
    "partly shared": ("num_gpus_per_node=2", "actor_infer.device_mapping=[0,1]", "async_generation_ratio=1"),
}
KILLS = 3  # as many as one engine may be brought back


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_engines_that_are_killed_amid_rollouts_ahead_lose_no_group(
    place: str, sort_data: Path, start_run: StartRun, tmp_path: Path
):
    chance = random.Random(place)
    dumps = tmp_path / "dumps"
    ahead = ("max_staleness=2", "max_running_requests=8", "eval_steps=-1", "save_steps=-1")
    mock = ("rollout_mock.enable=true", f"rollout_mock.dump_dir={dumps}")
    run = start_run(sort_data, "tiny_sort", *SMALL, *PLACES[place], *ahead, *mock)
    for _ in range(KILLS):
        run.wait_for_step(max(run.metrics, default=0) + 3)
        time.sleep(chance.random())
        chance.choice(engines_of(run)).kill()
    run.wait_for_step(max(run.metrics) + 5)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert_no_group_lost_or_trained_twice(dumps, num_groups=4, reach=3 * 4)
    rows = [row for step, row in run.metrics.items() if step]
    assert max(row["rollout/staleness_max"] for row in rows) <= 2
    assert max(row["train_infer/log_prob_diff_max"] for row in rows if "train_infer/log_prob_diff_max" in row) < 1e-4
    assert run.text.count("was restarted in") >= KILLS
    assert "Traceback (most recent call last)" not in run.text, run.text
    run.assert_all_gone()


def engines_of(run: Run) -> list[psutil.Process]:
    return [process for process in run.processes(ROLL_ROLE="actor_infer") if name_of(process).startswith("ray::")]


def assert_no_group_lost_or_trained_twice(dumps: Path, num_groups: int, reach: int) -> None:
    """`reach`: of how many of the last numbers some may not have been trained, since they were in flight."""
    files = sorted(dumps.glob("step_*.npz"))
    trained = [number for file in files for number in group_ids(file)]
    assert len(trained) == len(set(trained)) == num_groups * len(files)
    assert set(range(len(trained) - reach)) <= set(trained)
