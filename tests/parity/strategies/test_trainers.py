"""deepspeed_train and fsdp2_train against Hugging Face + torch.optim.AdamW in one process, on the same eight rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import assert_bf16_stays_near_fp32, assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.models import save_critic, save_windowed
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, Trace, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
Cases = dict[str, tuple[int, dict[str, Any]]]  # ranks, and what Run is given

ENGINES: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "fsdp2": {"fsdp2": {}},
    "replicas": {"fsdp2": {"fsdp_size": 1}},  # each rank holds the whole model
    "hybrid": {"fsdp2": {"fsdp_size": 2}},  # pairs that hold it
}
UNEVEN: dict[str, Any] = {"split": (3, 1, 2)}
WAITS, CHUNKS = UNEVEN | {"optimizer_waits": True}, UNEVEN | {"positions_per_chunk": 2}
ON_HOST = {"device": "cpu"}
# Blocks are not groups here; their attention and everything of 5,000 parameters are.
BY_HAND = {"wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen2Attention"], "min_num_params": 5000}}


def engines(names: str, given: dict[str, Any] | None = None, ending: str = "") -> Cases:
    """Example: "zero0-x1 fsdp2-x2" are one rank of ZeRO-0 and two of FSDP2."""
    split = (name.rpartition("-x") for name in names.split())
    return {f"{engine}-x{ranks}{ending}": (int(ranks), ENGINES[engine] | (given or {})) for engine, _, ranks in split}


def fsdp2(**settings: Any) -> tuple[int, dict[str, Any]]:
    return 2, UNEVEN | {"fsdp2": settings}


def zero(stage: int, ranks: int = 2, **settings: Any) -> tuple[int, dict[str, Any]]:
    return ranks, UNEVEN | {"stage": stage, "zero": settings}


_EVERY_ZERO = " ".join(f"zero{stage}-x{ranks}" for stage in range(4) for ranks in (1, 2))
WHOLE: Cases = {
    **engines(f"{_EVERY_ZERO} fsdp2-x1 fsdp2-x2"),
    **engines(f"{_EVERY_ZERO} fsdp2-x2 replicas-x2", UNEVEN, "-uneven"),
    **engines("fsdp2-x4 hybrid-x4", {"split": (1, 1)}),
    **engines("zero0-x2 zero1-x2 zero2-x2 zero3-x2 fsdp2-x2", WAITS, "-waits"),
    **engines("zero0-x1 zero3-x2 fsdp2-x2", CHUNKS, "-chunks"),
    "zero1-on-host": zero(1, ranks=1, offload_optimizer=ON_HOST),
    "zero2-on-host": zero(2, offload_optimizer=ON_HOST),
    "zero3-on-host": zero(3, offload_optimizer=ON_HOST, offload_param=ON_HOST),
    "zero3-small-buckets": zero(3, reduce_bucket_size=12_000),
    "fsdp2-gathered-once": fsdp2(reshard_after_forward=False, forward_prefetch=True),
    "fsdp2-on-host": fsdp2(offload_policy=True),
    "fsdp2-waiting-on-host": fsdp2(param_offload=True, optimizer_offload=True),
    "fsdp2-by-hand": fsdp2(**BY_HAND),
}


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path) -> Trace:
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3)


@pytest.mark.gate(
    "zero0-x1-uneven", "zero2-x2-uneven", "zero3-x2-uneven", "zero3-on-host", "zero3-x2-chunks", "zero3-small-buckets",
    "zero2-x2-waits", "fsdp2-x1", "fsdp2-waiting-on-host", "fsdp2-x2-chunks",
)  # fmt: skip
@pytest.mark.proof
@pytest.mark.parametrize("name", WHOLE)
def test_three_updates_equal_torch_adamw_on_the_whole_batch(
    name: str, rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    """Gradient of the first update, parameters and gradient norm of three, with a tied head. The reference sees every
    row alone and unpadded with full logits, so padding, micro batches, ranks, chunks and averaging are all in what is
    compared; dtypes below fp32 are not. Of two positions per chunk the ranks have different numbers of chunks. What
    waits in host memory during the passes is copied on a CPU all the same."""
    world_size, given = WHOLE[name]
    got = rank_pool(world_size).run(runs.train, Run(tiny_tied_model_dir, **given))[0]
    has_gradients = "offload_optimizer" not in given.get("zero", {})  # else DeepSpeed's accessor does not see them
    assert_same_training(got, reference, has_gradients=has_gradients)


LOSS, MAX_NORM, DECAY, WINDOW = BentLoss(entropy_coef=0.3), 0.05, 0.5, 4
HALVES = {"split": (1, 1)}
CLIPPED: Cases = {
    **engines("zero0-x1 zero0-x2 zero2-x2 zero3-x2 fsdp2-x1 fsdp2-x2 replicas-x2", HALVES),
    **engines("fsdp2-x2", CHUNKS, "-chunks"),
    **engines("zero0-x1 zero2-x2 zero3-x2 fsdp2-x1 fsdp2-x2", UNEVEN | {"packs": True}, "-packed"),
    **engines("zero0-x2 zero1-x2 zero2-x2 zero3-x2 fsdp2-x2", UNEVEN | {"sequence": 2}, "-shared"),
    **engines("zero0-x4 zero2-x4 zero3-x4 fsdp2-x4 hybrid-x4", HALVES | {"sequence": 2}, "-shared-by-2"),
    **engines("zero0-x4 zero2-x4 zero3-x4 fsdp2-x4 hybrid-x4", UNEVEN | {"sequence": 4}, "-shared-by-4"),
}


@pytest.fixture(scope="module")
def model_dirs(
    tiny_model_dir: Path, make_tiny_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Models with an untied head. The second layer of all but the first sees a few tokens back, and four heads of the
    last share a key-value head."""
    assert sum(row.input_ids.shape[1] > 2 * WINDOW for row in rows()) >= 4
    one_head = make_tiny_model_dir(num_kv_heads=1, tie_word_embeddings=False)
    found = {"padded": tiny_model_dir}
    for name, model_dir in (("packed", tiny_model_dir), ("shared", one_head)):
        found[name] = tmp_path_factory.mktemp(name)
        save_windowed(model_dir, found[name], WINDOW)
    return found


@pytest.mark.gate("zero0-x1", "fsdp2-x2", "zero0-x1-packed", "zero3-x2-packed", "fsdp2-x2-packed", "fsdp2-x2-shared")
@pytest.mark.proof
@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_decay_entropy_and_recomputation_equal_torch(
    name: str, rank_pool: Pools, model_dirs: dict[str, Path]
) -> None:
    """Gradients clipped to a tenth of their norm, weight decay (matrices only), a loss with entropy, and gradient
    checkpointing. The reported norm is the one before clipping. In packs of unequal numbers of rows, with a window
    shorter than most; and with ranks that share sequences, alone and beside data parallel, one key-value head for two
    or four, a window that reaches over the seam of two ranks' parts, packs that are no multiple of the ranks."""
    world_size, given = CLIPPED[name]
    shares = given.get("sequence", 1) > 1
    model_dir = model_dirs["shared" if shares else "packed" if "packs" in given else "padded"]
    want = train_reference(model_dir, rows(), LOSS, [LEARNING_RATE] * 3, max_norm=MAX_NORM, weight_decay=DECAY)
    assert want.metrics[0]["grad_norm"] > 10 * MAX_NORM
    run = Run(
        model_dir,
        training={"weight_decay": DECAY},
        model={"disable_gradient_checkpointing": False},
        max_norm=MAX_NORM,
        loss=LOSS,
        **given,
    )
    traces = rank_pool(world_size).run(runs.train, run)
    for trace in traces if shares else traces[:1]:
        assert_same_training(trace if trace.parameters[0] else replace(trace, parameters=want.parameters), want)


CRITICS: Cases = {
    **engines("zero0-x1 zero2-x2 zero3-x2 fsdp2-x1 fsdp2-x2"),
    **engines("zero3-x2 fsdp2-x2", {"packs": True}, "-packed"),
    **engines("zero3-x2 fsdp2-x2", {"sequence": 2}, "-shared"),
}


@pytest.mark.gate("zero3-x2", "fsdp2-x2", "zero3-x2-packed", "zero3-x2-shared")
@pytest.mark.proof
@pytest.mark.parametrize("name", CRITICS)
def test_critic_equals_torch_adamw_on_a_token_classifier(
    name: str, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """A value head that is not zero, one row of weights for two ranks, written as a Hugging Face directory."""
    save_critic(tiny_model_dir, tmp_path)
    want = train_reference(tmp_path, rows(), SquaredValueLoss(), [LEARNING_RATE] * 3)
    world_size, given = CRITICS[name]
    run = Run(tmp_path, loss=SquaredValueLoss(), role="critic", **UNEVEN, **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


BF16 = engines("zero0-x1 zero1-x2 zero2-x2 zero3-x2 fsdp2-x1 fsdp2-x2 replicas-x2")


@pytest.mark.gate("zero1-x2", "replicas-x2")
@pytest.mark.proof
@pytest.mark.parametrize("name", BF16)
def test_bf16_training_stays_near_fp32_and_keeps_fp32_masters(
    name: str, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """Updates of 1e-5, of which a bf16 weight near 0.1 would lose every one, add up in the fp32 masters."""
    want = train_reference(tiny_tied_model_dir, rows(), BentLoss(), [1e-5] * 3)
    world_size, given = BF16[name]
    low: dict[str, Any] = {"model": {"dtype": "bf16"}, "training": {"learning_rate": 1e-5}, "masters": True}
    got = rank_pool(world_size).run(runs.train, Run(tiny_tied_model_dir, **UNEVEN, **low, **given))[0]
    assert_bf16_stays_near_fp32(got, want)


@pytest.mark.proof
def test_learning_rate_follows_the_schedule(rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    """Linear over 5 updates with 2 of warm-up: 1/3, 2/3, 1, 2/3, 1/3 of the peak; the parameters follow."""
    rates = [LEARNING_RATE * thirds / 3 for thirds in (1, 2, 3, 2, 1)]
    want = train_reference(tiny_tied_model_dir, rows(), BentLoss(), rates)
    given: dict[str, Any] = {"total_updates": 5, "warmup_updates": 2, "training": {"lr_scheduler_type": "linear"}}
    run = Run(tiny_tied_model_dir, stage=2, updates=5, **given)
    assert_same_training(rank_pool(1).run(runs.train, run)[0], want)


@pytest.mark.gate("3")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_sum_gradients_of_bf16_in_fp32(stage: int, rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    """The formats of all large tensors that ranks of DeepSpeed add up in an update."""
    run = Run(tiny_tied_model_dir, stage, model={"dtype": "bf16"}, **UNEVEN)
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


@pytest.mark.gate("zero3-x2", "fsdp2-x2")
@pytest.mark.parametrize("name", ["zero0-x1", "zero3-x2", "fsdp2-x2"])
def test_experts_are_exported_one_by_one_as_the_checkpoint_holds_them(
    name: str, rank_pool: Pools, tmp_path: Path
) -> None:
    """transformers 5 fuses the experts of a mixture model in memory; engines expect the checkpoint's names. The ranks
    do not divide the three experts."""
    config = Qwen3MoeConfig(
        vocab_size=296, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    world_size, given = BF16[name]
    got = rank_pool(world_size).run(runs.fresh_export, Run(tmp_path, **given))[0]
    want = load_file(tmp_path / "model.safetensors")
    assert "model.layers.1.mlp.experts.2.up_proj.weight" in want
    assert largest_difference(got, {name: weight.numpy() for name, weight in want.items()}) == 0


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("name", ["zero3-x2", "fsdp2-x2"])
def test_a_model_that_cannot_pack_ends_the_setup_of_every_rank(name: str, rank_pool: Pools, tmp_path: Path) -> None:
    """ALiBi counts positions over the whole pack: only its numbers tell."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 296, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    BloomForCausalLM(BloomConfig(**sizes, initializer_range=0.2)).save_pretrained(tmp_path)
    world_size, given = BF16[name]
    with pytest.raises(RankError, match="use_sequence_packing does not work with this model: a row is off by"):
        rank_pool(world_size).run(runs.fresh_export, Run(tmp_path, packs=True, **given))
