"""The demo trained by FSDP2: it begins with DeepSpeed's numbers, learns, and goes on under another number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run

StartRun = Callable[..., Run]
ONE_STEP = ("max_steps=1", "eval_steps=-1", "save_steps=1")
# A reference under another system's name for its strategy, by turns with the trainer on its devices.
REFERENCE = (
    "use_kl_loss=true", "kl_loss_coef=0.001", "reference.strategy_args.strategy_name=fsdp",
    "reference.model_args.dtype=fp32",
)  # fmt: skip


@pytest.mark.slow
def test_two_ranks_train_beside_a_reference_and_one_rank_goes_on(sort_data: Path, start_run: StartRun) -> None:
    """The sampler's log-probs are those of the trainer's weights, also after a checkpoint was taken up by another
    number of ranks: with the weights of one update before they would differ by 1e-2 and more."""
    both = "reference.device_mapping=[0, 1]"
    run = start_run(sort_data, "tiny_sort_fsdp2", *ONE_STEP, *REFERENCE, both, name="fsdp2").finished()
    assert "fsdp is taken as fsdp2_train or fsdp2_infer, whichever fits the role" in run.text
    assert run.metrics[1]["actor/grad_norm"] > 0.01
    assert run.metrics[1]["actor/kl_loss"] == pytest.approx(0, abs=1e-6)  # the weights are still the reference's

    more = ("max_steps=2", "eval_steps=-1", "save_steps=-1", "resume_from_checkpoint=true")
    alone = ("actor_train.device_mapping=[0]", "reference.device_mapping=[0]")
    batch = "actor_train.training_args.gradient_accumulation_steps=4"
    later = start_run(sort_data, "tiny_sort_fsdp2", *more, *REFERENCE, *alone, batch, name="fsdp2").finished()
    assert later.metrics[2]["actor/kl_loss"] > 1e-6
    assert later.metrics[2]["train_infer/log_prob_diff_max"] < 1e-4


@pytest.mark.slow
def test_the_demo_learns_and_begins_as_with_deepspeed(sort_data: Path, start_run: StartRun) -> None:
    """Sampling is seeded and the weights are the same, so the first step of both runs trains on the same rows: their
    figures agree to 1e-4 (sums in another order)."""
    keys = ("skip_idle_rows=false", "max_steps=24", "save_steps=-1")
    run = start_run(sort_data, "tiny_sort_fsdp2", *keys, "eval_steps=24").finished()
    assert run.metrics[0]["val/reward_mean"] < 0.3
    assert run.metrics[24]["val/reward_mean"] > 0.7
    gaps = [row["train_infer/log_prob_diff_max"] for step, row in run.metrics.items() if step]
    assert max(gaps) < 1e-4, gaps
    deepspeed = start_run(sort_data, "tiny_sort", *keys, "eval_steps=-1", name="deepspeed")
    deepspeed.wait_for_step(1)
    first, want = run.metrics[1], deepspeed.metrics[1]
    of_ranks = "actor/prefix_sharing_factor"  # one of the runs shares its rows between two ranks
    compared = [name for name in want if name.startswith("actor/") and name != of_ranks]
    assert len(compared) > 5
    for name in compared:
        assert first[name] == pytest.approx(want[name], abs=1e-4, rel=1e-4), name
