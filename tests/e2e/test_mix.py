"""Rows of an expert in the updates of reinforcement learning, as a user starts them: the policy learns, its weight is
gone when it is said to be, a run goes on from a checkpoint bit for bit, and without weight it is plain reinforcement
learning bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable

pytestmark = pytest.mark.slow


def test_a_policy_learns_from_its_reward_and_an_expert_and_goes_on_bit_for_bit(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    """The checkpoint is from the middle of the weight's fall, in the first epoch of the expert's rows, whose order in
    later steps depends on the place."""
    whole = start_run(sort_data, "tiny_sort_mix", "save_steps=30")
    assert whole.wait(900) == 0, whole.text
    metrics = whole.metrics
    assert metrics[0]["val/reward_mean"] < 0.2 and metrics[100]["val/reward_mean"] > 0.95
    assert metrics[1]["actor/expert_weight"] == 0.5 and metrics[60]["actor/expert_weight"] < 0.001
    assert metrics[60]["actor/expert_nll_mean"] < metrics[1]["actor/expert_nll_mean"] / 2
    assert not [name for name in metrics[61] if name.startswith("actor/expert_")]
    assert whole.unlisted_metrics == []

    saved = whole.output_dir / "checkpoints" / "step_000030"
    again = start_run(sort_data, "tiny_sort_mix", "save_steps=30", f"resume_from_checkpoint={saved}", name="again")
    assert again.wait(900) == 0, again.text
    for step in (31, 60, 100):
        assert comparable(again.metrics[step]) == comparable(metrics[step])


@pytest.mark.parametrize("without", ["mix.weight=0", "mix.rows.right.share=0"])
def test_without_a_weight_or_a_share_the_run_is_plain_reinforcement_learning_bit_for_bit(
    without: str, sort_data: Path, start_run: Callable[..., Run]
) -> None:
    short = ("max_steps=3", "eval_steps=-1", "save_steps=-1")
    plain = start_run(sort_data, "tiny_sort", *short, name="plain")
    mixed = start_run(sort_data, "tiny_sort_mix", *short, "mix.decay_steps=0", without, name="mixed")
    assert plain.wait() == 0 and mixed.wait() == 0, plain.text + mixed.text
    for step in (1, 2, 3):
        assert comparable(mixed.metrics[step]) == comparable(plain.metrics[step])
