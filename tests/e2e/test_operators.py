"""A whole run with operators on its rows and on its groups: the table, and a resume bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable

STEPS = ("max_steps=4", "eval_steps=4", "save_steps=2")


@pytest.mark.slow
def test_operators_choose_rows_and_shape_rewards_and_a_resumed_run_is_the_same(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    whole = start_run(sort_data, "tiny_sort_operators", *STEPS, name="whole").finished()
    assert "actor_train.data_args.operators:" in whole.text and " rows remain" in whole.text
    for step in range(1, 5):
        row = whole.metrics[step]
        assert row["rollout/kept_groups"] + row["rollout/dropped_groups"] == 32
        assert row["rollout/sampled_reward_mean"] != row["rollout/reward_mean"]

    saved = whole.output_dir / "checkpoints" / "step_000002"
    resumed = start_run(
        sort_data, "tiny_sort_operators", *STEPS, f"resume_from_checkpoint={saved}", name="resumed"
    ).finished()
    for step in (3, 4):
        assert comparable(resumed.metrics[step]) == comparable(whole.metrics[step]), f"step {step}"
