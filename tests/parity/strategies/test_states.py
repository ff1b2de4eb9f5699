"""Training of models with layers that carry a state from token to token, against Hugging Face + torch.optim.AdamW in
one process, which sees each row alone and unpadded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from roll.configs.strategies.model_facts import STATES, UNPACKED
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training
from tests.parity.families.models import save_tiny
from tests.parity.strategies import runs
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Trace, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
SPREAD = 0.06
TRAINERS: dict[str, tuple[int, dict[str, Any]]] = {
    "zero2-x2": (2, {"stage": 2}),
    "zero3-x2": (2, {"stage": 3}),
    "fsdp2-x2": (2, {"fsdp2": {}}),
}


def as_sent(trace: Trace, model_dir: Path) -> Trace:
    """The weights by the names of the model's files, which trainers send."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    sent = []
    for parameters in trace.parameters:
        weights = {name: torch.from_numpy(values) for name, values in parameters.items()}
        sent.append({name: tensor.numpy() for name, tensor in revert_weight_conversion(model, weights).items()})
    return replace(trace, parameters=sent)


@pytest.mark.gate("qwen3_5_text-zero3-x2-packed", "falcon_h1-fsdp2-x2-packed")
@pytest.mark.proof
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("kind", sorted(STATES - UNPACKED.keys()))
def test_three_updates_equal_torch_adamw(
    kind: str, trainer: str, layout: str, rank_pool: Pools, tmp_path: Path
) -> None:
    """Gradient of the first update, parameters and gradient norm of three: clipped, with weight decay and entropy,
    activations computed again, micro batches of other sizes on two ranks."""
    model_dir = save_tiny(kind, tmp_path, SPREAD, vocab_size=296)
    loss, max_norm, (world_size, given) = BentLoss(entropy_coef=0.3), 0.05, TRAINERS[trainer]
    want = train_reference(model_dir, rows(), loss, [LEARNING_RATE] * 3, max_norm=max_norm, weight_decay=0.5)
    run = Run(
        model_dir,
        split=(3, 1, 2),
        training={"weight_decay": 0.5},
        model={"disable_gradient_checkpointing": False},
        max_norm=max_norm,
        loss=loss,
        packs=layout == "packed",
        **given,
    )
    assert_same_training(rank_pool(world_size).run(runs.train, run)[0], as_sent(want, model_dir))
