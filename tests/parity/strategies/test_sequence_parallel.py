"""Training with sequences that ranks share against Hugging Face + torch.optim.AdamW in one process, which sees each row
alone, unpadded and whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.parity.compare import PARAMETER_TOLERANCE, assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    join,
    rows,
    train_reference,
)
from tests.parity.strategies.runs import Run, trainer

Pools = Callable[[int], RankPool]
Engine = dict[str, Any]  # of Run: a ZeRO stage, or the settings of fsdp2_train
slow = pytest.mark.slow


def zero(stage: int) -> Engine:
    return {"stage": stage}


@pytest.mark.proof
@pytest.mark.parametrize(
    "engine, world_size",
    [
        ({"fsdp2": {}}, 2),
        *(pytest.param(engine, size, marks=slow) for engine, size in [(zero(2), 2), (zero(3), 4), ({"fsdp2": {}}, 4)]),
    ],
    ids=str,
)
def test_three_updates_of_adapters_equal_peft_and_torch_adamw(
    engine: Engine, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float32)
    adapter = an_adapter(model, tmp_path)
    want = train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3, adapter=adapter)
    given = LORA | {"adapter_name_or_path": str(adapter)}
    run = Run(tiny_tied_model_dir, split=(1, 1), model=given, sequence=2, **engine)
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], want)


@pytest.mark.parametrize("engine", [{"fsdp2": {}}, pytest.param(zero(2), marks=slow)], ids=str)
def test_a_checkpoint_goes_on_with_ranks_that_share_nothing(
    engine: Engine, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """Saved by two ranks with one sequence after two updates, taken up by two with rows of their own. A gradient near 0
    may turn a rounding error into a share of AdamW's step."""
    run = Run(tiny_tied_model_dir, updates=2, sequence=2, **engine)
    want = rank_pool(2).run(runs.save_after, run, tmp_path)[0]
    got = rank_pool(2).run(runs.go_on, replace(run, updates=1, sequence=1), tmp_path)[0]
    assert largest_difference(got.parameters[0], want) < PARAMETER_TOLERANCE


def kept_bytes(run: Run) -> int:
    """What a forward pass over 64 rows keeps on this rank for its backward pass, weights aside."""
    with trainer(run) as strategy:
        weights = {parameter.untyped_storage().data_ptr() for parameter in strategy.model.module.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = strategy._outputs(strategy.engine, join(rows(64)), run.loss, TEMPERATURE)  # type: ignore[union-attr]
        assert outputs.log_probs is not None
        return sum(storage.nbytes() for storage in kept.values())


def test_ranks_that_share_a_sequence_keep_their_share_of_its_activations(
    rank_pool: Pools, make_tiny_model_dir: Callable[..., Path]
) -> None:
    """As torch's own hooks count them: two ranks keep what one keeps alone, and what is shared by nobody: places,
    masks, and parts that are not quite equal. As many key-value heads as ranks, so none is repeated."""
    run = Run(make_tiny_model_dir(), packs=True)
    (alone,) = rank_pool(1).run(kept_bytes, run)
    parts = rank_pool(2).run(kept_bytes, replace(run, sequence=2))
    assert alone > 4e6
    assert max(parts) < 0.6 * alone
    assert alone < sum(parts) < 1.1 * alone
