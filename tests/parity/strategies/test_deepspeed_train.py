"""deepspeed_train against Hugging Face + torch.optim.AdamW in one process, on the same eight rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.parity.compare import assert_bf16_stays_near_fp32, assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.models import save_critic
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, Trace, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path) -> Trace:
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3)


@pytest.mark.gate("0-1-three-uneven", "2-2-three-uneven", "3-2-three-uneven")
@pytest.mark.proof
@pytest.mark.parametrize("split", [(1,), (3, 1, 2)], ids=["one-micro-batch", "three-uneven"])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_three_updates_equal_torch_adamw_on_the_whole_batch(
    stage: int, world_size: int, split: tuple[int, ...], rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    """Gradient of the first update, parameters and gradient norm of three. The reference sees every row alone and
    unpadded with full logits, so padding, micro batches, ranks, chunks and averaging are all in what is compared;
    dtypes below fp32 are not."""
    run = Run(tiny_tied_model_dir, stage, split)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], reference)


@pytest.mark.gate("3-2")
@pytest.mark.proof
@pytest.mark.parametrize("stage, world_size", [(1, 1), (2, 2), (3, 2)])
def test_offloaded_optimizer_and_parameters_change_nothing(
    stage: int, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    zero = {"offload_optimizer": {"device": "cpu"}} | ({"offload_param": {"device": "cpu"}} if stage == 3 else {})
    run = Run(tiny_tied_model_dir, stage, (3, 1, 2), zero=zero)
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert_same_training(got, reference, has_gradients=False)  # they lie where DeepSpeed's accessor does not look


@pytest.mark.gate("0-1")
@pytest.mark.proof
@pytest.mark.parametrize("stage, world_size", [(0, 1), (0, 2), (2, 2), (3, 2)])
def test_clipping_decay_entropy_and_recomputation_equal_torch(
    stage: int, world_size: int, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Untied head, gradients clipped to a tenth of their norm, weight decay (matrices only), a loss with entropy,
    and gradient checkpointing. The reported norm is the one before clipping."""
    loss = BentLoss(entropy_coef=0.3)
    max_norm = 0.05
    want = train_reference(tiny_model_dir, rows(), loss, [LEARNING_RATE] * 3, max_norm=max_norm, weight_decay=0.5)
    assert want.metrics[0]["grad_norm"] > 10 * max_norm
    run = Run(
        tiny_model_dir,
        stage,
        (1, 1),
        training={"weight_decay": 0.5},
        model={"disable_gradient_checkpointing": False},
        max_norm=max_norm,
        loss=loss,
    )
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("3-2")
@pytest.mark.proof
@pytest.mark.parametrize("stage, world_size", [(0, 1), (3, 2)])
def test_head_in_chunks_changes_nothing(
    stage: int, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    """Two positions per chunk: the ranks have different numbers of chunks, and ZeRO-3 must not notice."""
    run = Run(tiny_tied_model_dir, stage, (3, 1, 2), positions_per_chunk=2)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], reference)


@pytest.mark.proof
def test_a_tied_head_keeps_its_gradient_when_buckets_go_before_the_embedding_has_its_own(
    rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    run = Run(tiny_tied_model_dir, 3, (3, 1, 2), zero={"reduce_bucket_size": 12_000})
    assert_same_training(rank_pool(2).run(runs.train, run)[0], reference)


@pytest.mark.proof
def test_learning_rate_follows_the_schedule(rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    """Linear over 5 updates with 2 of warm-up: 1/3, 2/3, 1, 2/3, 1/3 of the peak; the parameters follow."""
    rates = [LEARNING_RATE * thirds / 3 for thirds in (1, 2, 3, 2, 1)]
    want = train_reference(tiny_tied_model_dir, rows(), BentLoss(), rates)
    run = Run(
        tiny_tied_model_dir,
        stage=2,
        updates=5,
        total_updates=5,
        warmup_updates=2,
        training={"lr_scheduler_type": "linear"},
    )
    assert_same_training(rank_pool(1).run(runs.train, run)[0], want)


@pytest.mark.gate("1-2")
@pytest.mark.proof
@pytest.mark.parametrize("stage, world_size", [(0, 1), (1, 2), (2, 2), (3, 2)])
def test_bf16_training_stays_near_fp32_and_keeps_fp32_masters(
    stage: int, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """Updates of 1e-5, of which a bf16 weight near 0.1 would lose every one, add up in the fp32 masters."""
    want = train_reference(tiny_tied_model_dir, rows(), BentLoss(), [1e-5] * 3)
    run = Run(
        tiny_tied_model_dir, stage, (3, 1, 2), model={"dtype": "bf16"}, training={"learning_rate": 1e-5}, masters=True
    )
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert_bf16_stays_near_fp32(got, want)


@pytest.mark.gate("3")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_sum_gradients_of_bf16_in_fp32(stage: int, rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    """The formats of all large tensors that ranks add up in an update."""
    run = Run(tiny_tied_model_dir, stage, (3, 1, 2), model={"dtype": "bf16"})
    assert rank_pool(2).run(runs.summed_formats, run) == [{torch.float32}] * 2


@pytest.mark.gate("3")
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_rotary_frequencies_are_those_of_transformers_in_bf16(
    stage: int, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """In fp32, to the bit. Where ZeRO-3 divides weights while they are loaded, DeepSpeed makes them bf16."""
    want = dict(AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.bfloat16).named_buffers())
    run = Run(tiny_tied_model_dir, stage, model={"dtype": "bf16"})
    got = rank_pool(2 if stage == 3 else 1).run(runs.rotary_frequencies, run)[0]
    assert got and all(np.array_equal(want[name].numpy(), values) for name, values in got.items())
    assert {values.dtype for values in got.values()} == {np.dtype(np.float32)}


@pytest.mark.gate("3-2")
@pytest.mark.proof
@pytest.mark.parametrize("stage, world_size", [(0, 1), (2, 2), (3, 2)])
def test_critic_equals_torch_adamw_on_a_token_classifier(
    stage: int, world_size: int, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """A value head that is not zero, written as a Hugging Face directory, trained for three updates."""
    save_critic(tiny_model_dir, tmp_path)
    want = train_reference(tmp_path, rows(), SquaredValueLoss(), [LEARNING_RATE] * 3)
    run = Run(tmp_path, stage, (3, 1, 2), loss=SquaredValueLoss(), role="critic")
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("3-2")
@pytest.mark.parametrize("stage, world_size", [(0, 1), (3, 2)])
def test_experts_are_exported_one_by_one_as_the_checkpoint_holds_them(
    stage: int, world_size: int, rank_pool: Pools, tmp_path: Path
) -> None:
    """transformers 5 fuses the experts of a mixture model in memory; engines expect the checkpoint's names."""
    from safetensors.torch import load_file
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=296,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    got = rank_pool(world_size).run(runs.fresh_export, Run(tmp_path, stage))[0]
    want = load_file(tmp_path / "model.safetensors")
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in want
    assert largest_difference(got, {name: weight.numpy() for name, weight in want.items()}) == 0


@pytest.mark.gate("2")
@pytest.mark.proof
@pytest.mark.parametrize(
    ("stage", "fsdp2"), [(0, None), (1, None), (2, None), (3, None), (0, {})], ids=["0", "1", "2", "3", "fsdp2"]
)
def test_an_optimizer_that_waits_in_host_memory_during_the_passes_changes_nothing(
    stage: int, fsdp2: dict[str, Any] | None, rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    """is_offload_optimizer_states_in_train_step. On a CPU the copies are made all the same."""
    run = Run(tiny_tied_model_dir, stage, (3, 1, 2), fsdp2=fsdp2, optimizer_waits=True)
    assert_same_training(rank_pool(2).run(runs.train, run)[0], reference)
