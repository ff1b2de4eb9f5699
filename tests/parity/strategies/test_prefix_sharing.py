"""Training and scoring on trees of rows that begin alike, against Hugging Face + torch.optim.AdamW in one process,
which sees each row alone and unpadded."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from roll.types.forest import forest_of
from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.megatron import models
from tests.parity.strategies import balance, runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.balance import COEF, shares
from tests.parity.strategies.forks import PROMPT, THOUGHT, forks
from tests.parity.strategies.models import save_critic, save_windowed
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, SquaredValueLoss, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
TRAINERS: dict[str, tuple[int, dict[str, Any]]] = {
    "zero0-x1": (1, {"stage": 0}),
    "zero2-x2": (2, {"stage": 2}),
    "zero3-x2": (2, {"stage": 3}),
    "fsdp2-x1": (1, {"fsdp2": {}}),
    "fsdp2-x2": (2, {"fsdp2": {}}),
    "fsdp2-x1-offload": (1, {"fsdp2": {}, "model": {"enable_activation_offload": True}}),
    "fsdp2-x2-auto": (2, {"fsdp2": {}, "shares": "auto"}),
    "zero2-x2-reentrant": (2, {"stage": 2, "model": {"gradient_checkpointing_use_reentrant": True}}),
}


def test_the_rows_share_most_of_their_tokens() -> None:
    """In the micro batches of the tests below; else they would compare packs."""
    ids = [row.input_ids[0, :-1].numpy() for row in forks()]
    for part in (ids, ids[::2], ids[1::2]):
        forest = forest_of(part)
        assert forest.num_tokens < 0.55 * sum(map(len, part)) and forest.level.max() >= 1
        assert forest.num_tokens >= PROMPT + THOUGHT
    assert forest_of(ids).level.max() == 2


@pytest.mark.gate("zero0-x1", "zero3-x2", "fsdp2-x2")
@pytest.mark.parametrize("trainer", TRAINERS)
def test_three_updates_on_trees_equal_torch_adamw(trainer: str, rank_pool: Pools, tiny_model_dir: Path) -> None:
    """Gradient of the first update, parameters and gradient norm of three: gradients clipped, a loss with entropy,
    gradient checkpointing, tokens that are trained in several rows."""
    loss, max_norm, (world_size, given) = BentLoss(entropy_coef=0.3), 0.05, TRAINERS[trainer]
    want = train_reference(tiny_model_dir, forks(), loss, [LEARNING_RATE] * 3, max_norm=max_norm)
    model = {"disable_gradient_checkpointing": False} | given.get("model", {})
    run = Run(tiny_model_dir, max_norm=max_norm, loss=loss, **{"shares": "on", **given, "model": model})
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("fsdp2-x1-qwen3")
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
@pytest.mark.parametrize("trainer", ["zero2-x2", "fsdp2-x1"])
def test_trees_in_several_micro_batches_equal_torch_adamw(
    trainer: str, family: str, rank_pool: Pools, make_tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Other families, whose heads are normed, with a pack beside: rows that share nothing in their micro batch; one
    with windows that hold a row. Gradients of the norms of queries and keys are near 0 (1e-7), of which AdamW makes
    steps of any size."""
    model_dir = make_tiny_model_dir(arch="qwen3", tie_word_embeddings=True) if family == "qwen3" else gemma3(tmp_path)
    want = train_reference(model_dir, forks(), BentLoss(), [LEARNING_RATE] * 3)
    world_size, given = TRAINERS[trainer]
    run = Run(model_dir, split=(1, 3), shares="on", packs=True, **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want, parameter_tolerance=5e-5)


def gemma3(directory: Path) -> Path:
    torch.manual_seed(0)
    shape = {"vocab_size": 296, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 128, "pad_token_id": 0}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    AutoModelForCausalLM.from_config(Gemma3TextConfig(**shape, **heads, **kinds)).save_pretrained(directory)  # type: ignore[arg-type]
    return directory


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_adapters_on_trees_equal_peft_and_torch_adamw(
    trainer: str, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """Gradients of A and B and the exported weights, in which the adapters are merged; activations are computed again,
    and the head is asked for a few positions at a time."""
    adapter = an_adapter(AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32), tmp_path)
    want = train_reference(tiny_tied_model_dir, forks(), BentLoss(), [LEARNING_RATE] * 3, adapter=adapter)
    model = LORA | {"adapter_name_or_path": str(adapter), "disable_gradient_checkpointing": False}
    world_size, given = TRAINERS[trainer]
    run = Run(tiny_tied_model_dir, shares="on", model=model, positions_per_chunk=5, **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_a_critic_on_trees_equals_torch_adamw_on_a_token_classifier(
    trainer: str, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Some gradients are near 0 (1e-7), of which AdamW makes steps of any size: 3e-5 on one kind of processor."""
    save_critic(tiny_model_dir, tmp_path)
    want = train_reference(tmp_path, forks(), SquaredValueLoss(), [LEARNING_RATE] * 3)
    world_size, given = TRAINERS[trainer]
    run = Run(tmp_path, loss=SquaredValueLoss(), role="critic", shares="on", **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want, parameter_tolerance=5e-5)


def shares_although(failing: str, run: Run) -> bool:
    """Whether a rank shares prefixes, if this step fails on the second."""
    with ExitStack() as stack:
        if dist.get_rank() == 1:
            stack.enter_context(patch(failing, side_effect=RuntimeError("no kernel")))
        return stack.enter_context(runs.trainer(run)).shares_prefixes


@pytest.mark.gate("_off_in_trees")
@pytest.mark.parametrize(
    "failing",
    ["roll.features.prefix_sharing.forward.use_packed_attention", "roll.models.sequences.check._off_in_trees"],
    ids=lambda path: path.rpartition(".")[2],
)
def test_a_rank_that_cannot_share_prefixes_has_none_share_them(
    failing: str, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    run = Run(tiny_model_dir, stage=2, shares="auto")
    assert rank_pool(2).run(shares_although, failing, run) == [False, False]
    with pytest.raises(RankError, match=r"StrategyError: another rank: no kernel"):
        rank_pool(2).run(shares_although, failing, replace(run, shares="on"))


@pytest.mark.gate("fsdp2-x1")
@pytest.mark.parametrize("trainer", ["fsdp2-x1", "zero2-x2"])
def test_the_balance_of_a_mixture_counts_the_tokens_of_rows(trainer: str, rank_pool: Pools, tmp_path: Path) -> None:
    mixture = models.make(tmp_path, "qwen3_moe", vocab_size=296)
    world_size, given = TRAINERS[trainer]
    want = balance.reference(mixture, forks(), shares(8, world_size, (1,)), COEF)
    run = Run(mixture, shares="on", model={"moe_aux_loss_coef": COEF}, **given)
    got = rank_pool(world_size).run(runs.balanced, run)
    assert largest_difference(got[0].gradients, want.gradients) < 2e-6
    assert got[0].moe_aux_loss == pytest.approx(want.moe_aux_loss, rel=1e-5)


@pytest.mark.gate("fsdp2-x1-on")
@pytest.mark.parametrize("shares_", ["on", "auto"])
@pytest.mark.parametrize("trainer", ["fsdp2-x1", "zero2-x2"])
def test_windows_shorter_than_rows_equal_torch_adamw(
    trainer: str, shares_: str, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Every token sees 5."""
    save_windowed(tiny_model_dir, tmp_path, 5)
    world_size, given = TRAINERS[trainer]
    want = train_reference(tmp_path, forks(), BentLoss(), [LEARNING_RATE] * 3)
    run = Run(tmp_path, shares=shares_, **given)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)
