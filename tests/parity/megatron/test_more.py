"""What the layouts of test_dense leave open: the critic, bf16, recomputation, eight ranks, scoring alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import RankPool
from tests.parity.compare import assert_within, largest_difference, scores
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.layouts import PP2, SHARED, SP, TP2
from tests.parity.megatron.ranks import Run
from tests.parity.proof import Difference, Differences
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, rows, train_reference

Pools = Callable[[int], RankPool]


@pytest.mark.gate("tp2-sp")
@pytest.mark.proof
@pytest.mark.parametrize("settings", [TP2 | SP, PP2, {"context_parallel_size": 2}], ids=["tp2-sp", "pp2", "cp2"])
def test_a_critic_learns_as_one_process_does(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """The value head's gradient is the same on every tensor-parallel rank and must be counted once. The reference
    starts from a head of zeros as well."""
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(family_dir("qwen2"), num_labels=1)
    for parameter in model.score.parameters():
        parameter.data.zero_()
    model.save_pretrained(tmp_path)
    given = rows(vocab_size=models.VOCAB_SIZE)
    want = train_reference(tmp_path, given, SquaredValueLoss(), [LEARNING_RATE] * 3)  # type: ignore[arg-type]
    run = Run(family_dir("qwen2"), settings, loss=SquaredValueLoss(), role="critic", vocab_size=models.VOCAB_SIZE)
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], want)


@pytest.mark.gate("full")
@pytest.mark.proof
@pytest.mark.parametrize(
    "settings",
    [
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
    ],
    ids=["full", "block", "selective", "selective-mlp"],
)
def test_recomputed_activations_change_nothing(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    want = train_reference(family_dir("qwen3"), rows(vocab_size=models.VOCAB_SIZE), BentLoss(), [LEARNING_RATE])
    run = Run(family_dir("qwen3"), TP2 | SP | settings, updates=1, vocab_size=models.VOCAB_SIZE)
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], want)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("settings", [{}, SHARED], ids=["plain", "shared"])
def test_eight_ranks_with_tensor_pipeline_and_data_parallel_train_as_one_process_does(
    settings: dict[str, Any], rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    given = rows(vocab_size=models.VOCAB_SIZE)
    want = train_reference(family_dir("qwen2"), given, BentLoss(), [LEARNING_RATE] * 3, max_norm=0.5)
    run = Run(family_dir("qwen2"), TP2 | SP | PP2 | settings, max_norm=0.5, vocab_size=models.VOCAB_SIZE)
    traces = rank_pool(8).run(ranks.train, run)
    assert_same_training(traces[0], want)
    assert all(trace.metrics == traces[0].metrics for trace in traces)


@pytest.mark.proof
def test_bf16_follows_fp32_within_its_precision(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """bf16 has 8 bits: a step of 1e-2 along the sign of the gradient is visible in fp32 master weights and rounded to
    bf16 weights (relative 2^-8 of values up to 1.3)."""
    given = rows(vocab_size=models.VOCAB_SIZE)
    want = train_reference(family_dir("qwen2"), given, BentLoss(), [LEARNING_RATE] * 3)
    run = Run(family_dir("qwen2"), TP2 | SP, vocab_size=models.VOCAB_SIZE, model={"dtype": "bf16"})
    got = rank_pool(2).run(ranks.train, run)[0]
    norm, other = got.metrics[0]["grad_norm"], want.metrics[0]["grad_norm"]
    seen = Differences(
        None,
        Difference(largest_difference(got.parameters[2], want.parameters[2]), 0.012),
        Difference(abs(norm - other) / other, 0.02),
        scores(got, want, 3e-2),
    )
    assert_within(seen)


def test_megatron_infer_scores_as_the_trainer_does(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    for settings in (TP2 | SP, PP2):
        run = Run(family_dir("qwen3"), settings, vocab_size=models.VOCAB_SIZE)
        trained = rank_pool(2).run(ranks.scores_and_weights, run)[0][0]
        for scored in rank_pool(2).run(ranks.scores, run):
            for (log_probs, entropy), want in zip(scored, trained, strict=True):
                assert np.array_equal(log_probs, want[0])
                assert np.array_equal(entropy, want[1])
