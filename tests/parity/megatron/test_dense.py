"""megatron_train against Hugging Face + torch.optim.AdamW in one process, on the same eight rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import ranks
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.layouts import CP2, PP2, SHARED, SP, TP2, VPP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Trace, rows, train_reference

Pools = Callable[[int], RankPool]


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path) -> Trace:
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3)


@pytest.mark.gate("tp2-sp", "pp2", "cp2", "dp2-shared")
@pytest.mark.proof
@pytest.mark.parametrize(
    "settings",
    [TP2, TP2 | SP, PP2, CP2, {}, SHARED, SHARED | TP2],
    ids=["tp2", "tp2-sp", "pp2", "cp2", "dp2", "dp2-shared", "tp2-shared"],
)
def test_two_ranks_train_as_one_process_does(
    settings: dict[str, Any], rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    got = rank_pool(2).run(ranks.train, Run(tiny_tied_model_dir, settings))[0]
    assert_same_training(got, reference)


PACKED = {"packs": True}
FOUR = {
    "tp2-pp2": (TP2 | PP2, {}),
    "tp2-pp2-sp-shared": (TP2 | PP2 | SP | SHARED, {}),
    "cp2-tp2-sp": (TP2 | SP | CP2, {}),
    "pp2-dp2-shapes-fixed": (PP2 | {"variable_seq_lengths": False}, {"split": (3, 1)}),
    "vpp": (VPP2, {"split": (1, 1, 1)}),
    "overlap": (SHARED | TP2 | {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 2000}, {}),
    "cp4": ({"context_parallel_size": 4}, {}),
    "tp2-sp-packed": (TP2 | SP, PACKED),
    "cp2-pp2-packed": (PP2 | CP2, PACKED),
    "vpp-packed-fixed": (VPP2 | {"variable_seq_lengths": False}, PACKED | {"split": (3, 1)}),
    "pp2-overlap": (SHARED | PP2 | {"overlap_grad_reduce": True, "overlap_param_gather": True}, {}),
    "vpp-recompute": (VPP2 | {"recompute_granularity": "full", "recompute_method": "uniform"}, {}),
}


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", list(FOUR))
@pytest.mark.parametrize("arch", ["qwen3"])
def test_four_ranks_train_as_one_process_does(
    name: str, arch: str, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path]
) -> None:
    settings, options = FOUR[name]
    model_dir = make_tiny_model_dir(arch=arch, tie_word_embeddings=name not in ("tp2-pp2",), num_layers=4)
    want = train_reference(model_dir, rows(), BentLoss(0.05), [LEARNING_RATE] * 3, max_norm=0.5, weight_decay=0.1)
    run = Run(model_dir, settings, max_norm=0.5, weight_decay=0.1, loss=BentLoss(0.05), **options)
    assert_same_training(rank_pool(4).run(ranks.train, run)[0], want)


EMBEDDING, LOSS = {"account_for_embedding_in_pipeline_split": True}, {"account_for_loss_in_pipeline_split": True}
UNEVEN = {
    "1-2": (PP2 | EMBEDDING, 3, {}),
    "2-1": (PP2 | LOSS, 3, {}),
    "first-1-2": (PP2 | {"num_layers_in_first_pipeline_stage": 1}, 3, {}),
    "last-virtual-4-2": (VPP2 | {"num_layers_in_last_pipeline_stage": 2}, 6, {"split": (1, 1, 1)}),
    "virtual-1-2-2-1": (VPP2 | EMBEDDING | LOSS, 6, {"split": (1, 1, 1)}),
}


@pytest.mark.gate("1-2")
@pytest.mark.proof
@pytest.mark.parametrize("name", list(UNEVEN))
def test_stages_of_unequal_length_train_as_one_process_does(
    name: str, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path]
) -> None:
    """Three layers do not split evenly over two stages otherwise. Half the learning rate: with six layers the rounding
    of near-zero gradients, which AdamW turns into shares of a step, is beyond the tolerance on evenly split stages
    too."""
    settings, layers, options = UNEVEN[name]
    model_dir = make_tiny_model_dir(arch="qwen3", tie_word_embeddings=True, num_layers=layers)
    want = train_reference(model_dir, rows(), BentLoss(), [LEARNING_RATE / 2] * 3)
    run = Run(model_dir, settings, training={"learning_rate": LEARNING_RATE / 2}, **options)
    assert_same_training(rank_pool(2).run(ranks.train, run)[0], want)
