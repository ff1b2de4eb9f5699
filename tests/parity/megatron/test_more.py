"""What the layouts of test_dense leave open: the critic, bf16, recomputation, eight ranks, scoring alone, other layouts
on resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, rows, train_reference

Pools = Callable[[int], RankPool]
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
SP: dict[str, Any] = {"sequence_parallel": True}
SHARED: dict[str, Any] = {"use_distributed_optimizer": True}


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


def test_bf16_follows_fp32_within_its_precision(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    """bf16 has 8 bits: a step of 1e-2 along the sign of the gradient is visible in fp32 master weights and rounded to
    bf16 weights (relative 2^-8 of values up to 1.3)."""
    given = rows(vocab_size=models.VOCAB_SIZE)
    want = train_reference(family_dir("qwen2"), given, BentLoss(), [LEARNING_RATE] * 3)
    run = Run(family_dir("qwen2"), TP2 | SP, vocab_size=models.VOCAB_SIZE, model={"dtype": "bf16"})
    got = rank_pool(2).run(ranks.train, run)[0]
    assert got.metrics[0]["grad_norm"] == pytest.approx(want.metrics[0]["grad_norm"], rel=0.02)
    for name, weight in got.parameters[2].items():
        assert np.abs(weight - want.parameters[2][name]).max() < 0.012


def test_megatron_infer_scores_as_the_trainer_does(rank_pool: Pools, family_dir: Callable[..., Path]) -> None:
    for settings in (TP2 | SP, PP2):
        run = Run(family_dir("qwen3"), settings, vocab_size=models.VOCAB_SIZE)
        trained = rank_pool(2).run(ranks.scores_and_weights, run)[0][0]
        for scored in rank_pool(2).run(ranks.scores, run):
            for (log_probs, entropy), want in zip(scored, trained, strict=True):
                assert np.array_equal(log_probs, want[0])
                assert np.array_equal(entropy, want[1])


RESHARDS: dict[str, tuple[str, dict[str, Any], int, dict[str, Any], int]] = {
    "tp2-to-pp2": ("qwen2", TP2 | SP, 2, PP2, 2),
    "tp2-pp2-shared-to-dp2-shared": ("qwen3", TP2 | PP2 | SHARED, 4, SHARED, 2),
    "dp2-shared-to-tp2-shared": ("qwen2", SHARED, 2, TP2 | SP | SHARED, 2),
    "ep2-to-tp2-ep2": ("qwen3_moe", EP2 | SHARED, 2, TP2 | SP | EP2 | SHARED, 4),
}


@pytest.mark.parametrize("name", list(RESHARDS))
def test_a_run_goes_on_under_another_layout(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Two updates, a checkpoint, a load by another layout, a third update: weights at the checkpoint bit for bit, and
    after the third what the unbroken run has, but for the order of sums."""
    family, before, ranks_before, after, ranks_after = RESHARDS[name]
    run = Run(family_dir(family), before, vocab_size=models.VOCAB_SIZE)
    saved, unbroken, norms = rank_pool(ranks_before).run(ranks.save_and_go_on, run, tmp_path)[0]
    other = Run(family_dir(family), after, vocab_size=models.VOCAB_SIZE)
    loaded, resumed, other_norms = rank_pool(ranks_after).run(ranks.load_and_go_on, other, tmp_path)[0]
    assert saved.keys() == loaded.keys()
    assert all(np.array_equal(saved[key], loaded[key]) for key in saved)
    assert max(float(np.abs(unbroken[key] - resumed[key]).max()) for key in unbroken) < 2e-5
    assert other_norms == pytest.approx(norms, rel=1e-4)


OTHERWISE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "shared-to-plain": ("qwen2", SHARED, {}, {}, "use_distributed_optimizer True (now False)"),
    "plain-to-shared": ("qwen2", {}, SHARED, {}, "use_distributed_optimizer False (now True)"),
    "experts-together": ("qwen3_moe", EP2 | SHARED, SHARED, {}, "expert parallel True (now False)"),
    "plain-to-bf16": ("qwen2", {}, {}, {"dtype": "bf16"}, "dtype 'fp32' (now 'bf16')"),
    "layer-frozen": (
        "qwen2", SHARED, SHARED, {"freeze_module_prefix": "model.layers.0."},
        "freeze_module_prefix None (now 'model.layers.0.')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OTHERWISE))
def test_what_a_run_cannot_change_on_resume_is_refused_before_anything_is_loaded(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """The optimizer's state lies otherwise in the file; Megatron fails on it after the weights are overwritten."""
    family, before, after, model, message = OTHERWISE[name]
    run = Run(family_dir(family), before, vocab_size=models.VOCAB_SIZE)
    other = Run(family_dir(family), after, vocab_size=models.VOCAB_SIZE, model=model)
    for error, unchanged in rank_pool(2).run(ranks.resumed_otherwise, run, other, tmp_path):
        assert error == f"{tmp_path} was saved with {message}. Resume with the same, or start anew."
        assert unchanged
