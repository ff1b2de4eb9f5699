"""Training on packs against Hugging Face + torch.optim.AdamW in one process, which sees each row alone and unpadded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import assert_same_training
from tests.parity.strategies import runs
from tests.parity.strategies.models import save_critic, save_windowed
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
TRAINERS: dict[str, tuple[int, dict[str, Any]]] = {
    "zero0-x1": (1, {"stage": 0}),
    "zero2-x2": (2, {"stage": 2}),
    "zero3-x2": (2, {"stage": 3}),
    "fsdp2-x1": (1, {"fsdp2": {}}),
    "fsdp2-x2": (2, {"fsdp2": {}}),
}
WINDOW = 4


@pytest.fixture(scope="module")
def windowed_model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, the second layer of which sees a few tokens back."""
    directory = tmp_path_factory.mktemp("windowed")
    save_windowed(tiny_model_dir, directory, WINDOW)
    return directory


@pytest.mark.gate("zero0-x1", "zero3-x2", "fsdp2-x2")
@pytest.mark.proof
@pytest.mark.parametrize("trainer", TRAINERS)
def test_three_updates_on_packs_equal_torch_adamw(trainer: str, rank_pool: Pools, windowed_model_dir: Path) -> None:
    """Gradient of the first update, parameters and gradient norm of three: a window that is shorter than most rows,
    gradients clipped to a tenth, weight decay, a loss with entropy, gradient checkpointing, packs of unequal numbers of
    rows. As in the padded runs of the same trainers, so padding changes nothing."""
    assert sum(row.input_ids.shape[1] > 2 * WINDOW for row in rows()) >= 4
    loss, max_norm, (world_size, given) = BentLoss(entropy_coef=0.3), 0.05, TRAINERS[trainer]
    want = train_reference(windowed_model_dir, rows(), loss, [LEARNING_RATE] * 3, max_norm=max_norm, weight_decay=0.5)
    run = Run(
        windowed_model_dir,
        split=(3, 1, 2),
        training={"weight_decay": 0.5},
        model={"disable_gradient_checkpointing": False},
        max_norm=max_norm,
        loss=loss,
        packs=True,
        **given,
    )
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("zero3-x2")
@pytest.mark.proof
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_a_critic_on_packs_equals_torch_adamw_on_a_token_classifier(
    trainer: str, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    save_critic(tiny_model_dir, tmp_path)
    want = train_reference(tmp_path, rows(), SquaredValueLoss(), [LEARNING_RATE] * 3)
    world_size, given = TRAINERS[trainer]
    run = Run(tmp_path, split=(3, 1, 2), loss=SquaredValueLoss(), role="critic", packs=True, **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_a_model_that_cannot_pack_ends_the_setup_of_every_rank(trainer: str, rank_pool: Pools, tmp_path: Path) -> None:
    """ALiBi counts positions over the whole pack: only its numbers tell."""
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 296, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    BloomForCausalLM(BloomConfig(**sizes, initializer_range=0.2)).save_pretrained(tmp_path)
    world_size, given = TRAINERS[trainer]
    with pytest.raises(RankError, match="use_sequence_packing does not work with this model: a row is off by"):
        rank_pool(world_size).run(runs.fresh_export, Run(tmp_path, packs=True, **given))
