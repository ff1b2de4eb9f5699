"""Training with matrices divided over ranks against Hugging Face + torch.optim.AdamW in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roll.configs.strategies.fsdp2_settings import PLANNED
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.models import save_critic
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    BentLoss,
    SquaredValueLoss,
    rows,
    train_reference,
)
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
TWO = {"tensor_parallel_size": 2}
LOSS, MAX_NORM = BentLoss(entropy_coef=0.3), 0.05
slow = pytest.mark.slow
SHAPE = {
    "vocab_size": 296,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
OF_A_TYPE: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0, "sliding_window": 4},
    "glm": {"partial_rotary_factor": 0.5},
    "glm4": {"partial_rotary_factor": 0.5},
    "granite": {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "cohere2": {"sliding_window": 4},
    "starcoder2": {"use_bias": True},
}
FIRST = ("qwen3", "phi3", "gemma2")  # norms of heads; matrices that are joined; norms after, soft caps


def save_model(kind: str, directory: Path) -> Path:
    """A small model of a type, with weights, biases and norms that all matter."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **SHAPE | OF_A_TYPE.get(kind, {}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        around = 1.0 if "norm" in name and name.endswith("weight") and "gemma" not in kind else 0.0
        torch.nn.init.normal_(parameter, around, 0.1)
    model.save_pretrained(directory)
    return directory


@pytest.mark.gate("packed")
@pytest.mark.proof
@pytest.mark.parametrize(
    "world_size, settings, given",
    [
        (2, {}, {}),
        (2, {"param_offload": True, "optimizer_offload": True}, {"packs": True}),
        (4, {}, {"split": (3, 1, 2)}),
        pytest.param(4, {"fsdp_size": 1}, {"split": (3, 1, 2)}, marks=slow),
        pytest.param(4, {"reshard_after_forward": False, "forward_prefetch": True}, {"packs": True}, marks=slow),
    ],
    ids=["alone", "packed", "x4", "replicas", "gathered-once"],
)
def test_three_updates_with_divided_matrices_equal_torch_adamw(
    world_size: int, settings: dict[str, Any], given: dict[str, Any], rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """Gradient of the first update, parameters and gradient norm of three on every rank: gradients clipped to a tenth,
    weight decay, a loss with entropy, gradient checkpointing."""
    decay = 0.5
    want = train_reference(
        tiny_tied_model_dir, rows(), LOSS, [LEARNING_RATE] * 3, max_norm=MAX_NORM, weight_decay=decay
    )
    run = Run(
        tiny_tied_model_dir,
        fsdp2=TWO | settings,
        training={"weight_decay": decay},
        model={"disable_gradient_checkpointing": False},
        max_norm=MAX_NORM,
        loss=LOSS,
        **given,
    )
    for trace in rank_pool(world_size).run(runs.train, run):
        assert_same_training(trace if trace.parameters[0] else replace(trace, parameters=want.parameters), want)


@pytest.mark.gate("qwen3")
@pytest.mark.proof
@pytest.mark.parametrize("kind", [kind if kind in FIRST else pytest.param(kind, marks=slow) for kind in PLANNED])
def test_every_planned_type_trains_as_torch_does(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    model_dir = save_model(kind, tmp_path)
    want = train_reference(model_dir, rows(), LOSS, [LEARNING_RATE] * 2)
    run = Run(model_dir, fsdp2=TWO, updates=2, loss=LOSS)
    assert_same_training(rank_pool(2).run(runs.train, run)[0], want)


@pytest.mark.proof
def test_a_critic_with_divided_matrices_trains_as_torch_does(
    rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    save_critic(tiny_tied_model_dir, tmp_path)
    loss = SquaredValueLoss()
    want = train_reference(tmp_path, rows(), loss, [LEARNING_RATE] * 3)
    run = Run(tmp_path, fsdp2=TWO, role="critic", loss=loss)
    assert_same_training(rank_pool(2).run(runs.train, run)[0], want)


@pytest.mark.slow
def test_a_checkpoint_resumes_on_another_layout(rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path) -> None:
    """Saved by four ranks in two groups that divide matrices; the next update is the same there, on two that divide
    them, and on two that do not."""
    run = Run(tiny_tied_model_dir, fsdp2=TWO)
    after = rank_pool(4).run(runs.save_after, run, tmp_path)[0]
    one_more = replace(run, updates=1)
    for world_size, settings in ((4, TWO), (2, TWO), (2, {})):
        found = rank_pool(world_size).run(runs.go_on, replace(one_more, fsdp2=settings), tmp_path)[0].parameters[0]
        assert largest_difference(found, after) < 1e-6


def test_ranks_that_share_matrices_stay_the_same_to_the_bit(rank_pool: Pools, tmp_path: Path) -> None:
    """What each has whole: embedding, norms of layers and of heads."""
    found = rank_pool(2).run(whole_after_updates, Run(save_model("qwen3", tmp_path), fsdp2=TWO))
    assert found[0].keys() == found[1].keys()
    assert any("q_norm" in name for name in found[0])
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])


def whole_after_updates(run: Run) -> dict[str, np.ndarray]:
    from roll.distributed.strategy.fsdp2.sharding import tensor_placement
    from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy

    with runs.trainer(run) as strategy:
        assert isinstance(strategy, Fsdp2TrainStrategy)
        for _ in range(3):
            runs.one_update(strategy, run)
        shards: Any = strategy.rank.shards()
        return {
            name: shard.to_local().detach().numpy().copy()
            for name, shard in shards.items()
            if tensor_placement(shard) is None
        }
