"""The demo trained by Megatron-Core: it learns as the DeepSpeed form does, and begins with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run

StartRun = Callable[..., Run]
HF_SAMPLER = ("actor_infer.strategy_args.strategy_name=hf_infer", "~actor_infer.strategy_args.strategy_config")
SHORT = ("eval_steps=24", "save_steps=-1")


@pytest.mark.slow
def test_tensor_parallel_ranks_feed_vllm(shared_heads_data: Path, start_run: StartRun) -> None:
    run = start_run(shared_heads_data, "tiny_sort_megatron", "max_steps=3", "eval_steps=-1", "save_steps=-1").finished()
    assert "2 workers (tensor parallel 2)" in run.text
    assert run.metrics[3]["actor/grad_norm"] > 0.01
    assert_engine_has_the_trainers_weights(run)


@pytest.mark.slow
def test_tensor_parallel_with_vllm_learns_as_deepspeed_does_and_starts_with_the_same_step(
    shared_heads_data: Path, start_run: StartRun
) -> None:
    """24 of the demo's 100 steps with tensor parallel 2. Sampling is seeded and the weights are the same, so the first
    step of both runs trains on the same rows: its loss and gradient norm agree to 1e-4 (sums in another order)."""
    megatron = start_run(shared_heads_data, "tiny_sort_megatron", "max_steps=24", *SHORT, name="megatron").finished()
    assert megatron.metrics[0]["val/reward_mean"] < 0.3
    assert megatron.metrics[24]["val/reward_mean"] > 0.7
    assert_engine_has_the_trainers_weights(megatron)

    deepspeed = start_run(shared_heads_data, "tiny_sort_vllm", "max_steps=24", *SHORT, name="deepspeed").finished()
    assert deepspeed.metrics[0]["val/reward_mean"] == megatron.metrics[0]["val/reward_mean"]
    assert deepspeed.metrics[24]["val/reward_mean"] > 0.7
    first, want = megatron.metrics[1], deepspeed.metrics[1]
    compared = [name for name in want if name.startswith("actor/")]
    assert len(compared) > 5
    for name in compared:
        assert first[name] == pytest.approx(want[name], abs=1e-4, rel=1e-4), name


def assert_engine_has_the_trainers_weights(run: Run) -> None:
    """Log-probs of the sampled tokens differ by fp32 rounding (1.2e-5 in a whole run); with the weights of one update
    before, by 1e-2 and more."""
    gaps = [row["train_infer/log_prob_diff_max"] for step, row in run.metrics.items() if step]
    assert gaps and max(gaps) < 1e-4, gaps


PACKED = (
    "actor_train.use_sequence_packing=true",
    "actor_train.sequence_packing_args={algorithm: load_balance, max_packed_sequence_length_train: 512, "
    "max_packed_sequence_length_forward: 512}",
)


@pytest.mark.slow
def test_a_pipeline_feeds_vllm_and_trains_on_packed_rows(sort_data: Path, start_run: StartRun) -> None:
    short = ("max_steps=4", "eval_steps=-1", "save_steps=-1")
    run = start_run(sort_data, "tiny_sort_megatron_pp", *short, *PACKED, name="pp").finished()
    assert "2 workers (pipeline parallel 2, rows packed)" in run.text
    assert_engine_has_the_trainers_weights(run)
