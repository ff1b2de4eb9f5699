"""A Megatron run that is saved and goes on: under the same layout, under others, and within which memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import memory, models, ranks
from tests.parity.megatron.compare import assert_goes_on
from tests.parity.megatron.layouts import BF16, BUCKETS, CP2, EP2, PP2, SHARED, SP, TP2
from tests.parity.megatron.ranks import Run

Pools = Callable[[int], RankPool]
TIED = {"tie_word_embeddings": True}

SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], int, int]] = {
    "plain": ("qwen2", TP2 | SP, {}, {}, 2, 2),
    "shared": ("qwen2", SHARED, {}, {}, 2, 2),
    "shared-bf16-buckets": ("qwen2", SHARED | BUCKETS, {}, BF16, 2, 2),
    "shared-tied-stages-bf16": ("qwen2", SHARED | PP2, TIED, BF16, 4, 2),
    "shared-context": ("llama", SHARED | CP2, {}, {}, 2, 2),
    "shared-experts-bf16": ("qwen3_moe", SHARED | EP2, {}, BF16, 4, 2),
    "corrected-experts-bf16": ("glm4_moe", SHARED | EP2, {}, BF16, 4, 2),
    "shared-frozen": ("qwen2", SHARED, {}, {"freeze_module_prefix": "model.layers.0."}, 2, 2),
    "plain-at-first": ("qwen2", TP2 | SP, {}, {}, 2, 0),
    "plain-bf16-at-first": ("qwen2", TP2 | SP, {}, BF16, 2, 0),
    "shared-at-first": ("qwen2", SHARED, {}, {}, 2, 0),
    "shared-bf16-at-first": ("qwen2", SHARED, {}, BF16, 2, 0),
}


@pytest.mark.gate("plain", "shared-bf16-buckets", "shared-bf16-at-first")
@pytest.mark.parametrize("name", list(SAME))
def test_an_unchanged_run_goes_on_bit_for_bit(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """fp32 copies, both moments and Adam's count of steps must be the same. At first AdamW has no moments, as that of
    a policy whose critic warms up."""
    family, settings, shape, model, num_ranks, updates = SAME[name]
    run = Run(family_dir(family, **shape), settings, model=model, vocab_size=models.VOCAB_SIZE)
    assert_goes_on(rank_pool, tmp_path, (num_ranks, run), (num_ranks, run), updates)


@pytest.mark.slow
def test_a_checkpoint_takes_less_memory_than_a_ranks_share_of_the_state(
    rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """One tensor at a time is copied: a sixth of the share here. Gathered, the state is twice the share, held several
    times over."""
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 8192}
    run = Run(family_dir("qwen2", **shape), SHARED, model=BF16, vocab_size=models.VOCAB_SIZE)
    for peaks in rank_pool(2).run(memory.memory_of_a_checkpoint, run, tmp_path):
        assert peaks.share > 150e6
        assert peaks.save < peaks.share
        assert peaks.load < peaks.share


RESHARDS: dict[str, tuple[str, dict[str, Any], int, dict[str, Any], int]] = {
    "tp2-to-pp2": ("qwen2", TP2 | SP, 2, PP2, 2),
    "tp2-pp2-shared-to-dp2-shared": ("qwen3", TP2 | PP2 | SHARED, 4, SHARED, 2),
    "dp2-shared-to-tp2-shared": ("qwen2", SHARED, 2, TP2 | SP | SHARED, 2),
    "dp2-shared-to-dp4-shared": ("qwen2", SHARED, 2, SHARED | BUCKETS, 4),
    "ep2-to-tp2-ep2": ("qwen3_moe", EP2 | SHARED, 2, TP2 | SP | EP2 | SHARED, 4),
    "ep2-to-dp2": ("qwen3_moe", EP2 | SHARED, 2, SHARED, 2),
    "latent-tp2-to-pp2": ("deepseek_v3", TP2 | SP, 2, PP2, 2),
    "normed-tp2-to-pp2": ("glm4", TP2 | SP, 2, PP2, 2),
    "sinks-tp2-to-ep2": ("gpt_oss", TP2 | SP | SHARED | {"expert_tensor_parallel_size": 1}, 2, EP2 | SHARED, 2),
    "dp2-to-pp2-ep2": ("qwen3_moe", SHARED, 2, PP2 | EP2 | SHARED, 4),
}


@pytest.mark.gate("tp2-to-pp2", "ep2-to-dp2")
@pytest.mark.parametrize("name", list(RESHARDS))
def test_a_run_goes_on_under_another_layout(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    family, before, ranks_before, after, ranks_after = RESHARDS[name]
    run, other = (Run(family_dir(family), each, vocab_size=models.VOCAB_SIZE) for each in (before, after))
    assert_goes_on(rank_pool, tmp_path, (ranks_before, run), (ranks_after, other))


OTHERWISE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "shared-to-plain": ("qwen2", SHARED, {}, {}, "use_distributed_optimizer True (now False)"),
    "plain-to-shared": ("qwen2", {}, SHARED, {}, "use_distributed_optimizer False (now True)"),
    "experts-together": ("qwen3_moe", EP2, {}, {}, "expert parallel True (now False)"),
    "plain-to-bf16": ("qwen2", {}, {}, {"dtype": "bf16"}, "dtype 'fp32' (now 'bf16')"),
    "layer-frozen": (
        "qwen2", SHARED, SHARED, {"freeze_module_prefix": "model.layers.0."},
        "freeze_module_prefix None (now 'model.layers.0.')",
    ),
}  # fmt: skip


@pytest.mark.gate("shared-to-plain", "layer-frozen")
@pytest.mark.parametrize("name", list(OTHERWISE))
def test_what_a_run_cannot_change_on_resume_is_refused_before_anything_is_loaded(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """The optimizer's state lies otherwise in the file; Megatron fails on it after the weights are overwritten."""
    family, before, after, model, message = OTHERWISE[name]
    run = Run(family_dir(family), before, vocab_size=models.VOCAB_SIZE)
    other = Run(family_dir(family), after, vocab_size=models.VOCAB_SIZE, model=model)
    for error, unchanged in rank_pool(2).run(ranks.resumed_otherwise, run, other, tmp_path):
        assert error == f"{tmp_path} was saved with {message}. Resume with the same, or start over."
        assert unchanged
