"""Training with sequences that ranks share against Hugging Face + torch.optim.AdamW in one process, which sees each row
alone, unpadded and whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.strategies import runs
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, rows, train_reference
from tests.parity.strategies.runs import Run
from tests.parity.strategies.test_deepspeed_train import assert_same_training

Pools = Callable[[int], RankPool]
Engine = dict[str, Any]  # of Run: a ZeRO stage, or the settings of fsdp2_train
WINDOW = 4
slow = pytest.mark.slow


def zero(stage: int) -> Engine:
    return {"stage": stage}


@pytest.fixture(scope="module")
def windowed_model_dir(make_tiny_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 heads and one key-value head, an untied head; the second layer sees a few tokens back."""
    directory = tmp_path_factory.mktemp("windowed")
    shutil.copytree(make_tiny_model_dir(num_kv_heads=1, tie_word_embeddings=False), directory, dirs_exist_ok=True)
    changed = {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changed))
    return directory


LOSS, MAX_NORM = BentLoss(entropy_coef=0.3), 0.05


@pytest.mark.parametrize(
    "engine, world_size, sequence",
    [
        (zero(3), 2, 2),
        ({"fsdp2": {}}, 2, 2),
        *(pytest.param(zero(stage), 2, 2, marks=slow) for stage in (0, 1, 2)),
        *(
            pytest.param(engine, 4, sequence, marks=slow)
            for engine in (zero(0), zero(2), zero(3), {"fsdp2": {}}, {"fsdp2": {"fsdp_size": 2}})
            for sequence in (2, 4)
        ),
    ],
    ids=str,
)
def test_three_updates_with_shared_sequences_equal_torch_adamw(
    engine: Engine, world_size: int, sequence: int, rank_pool: Pools, windowed_model_dir: Path
) -> None:
    """Gradient of the first update, parameters and gradient norm of three: alone and beside data parallel, one
    key-value head for two or four ranks, a window that reaches over the seam of two ranks' parts, packs that are no
    multiple of the ranks, gradients clipped to a tenth, weight decay, a loss with entropy, gradient checkpointing."""
    decay = 0.5
    want = train_reference(windowed_model_dir, rows(), LOSS, [LEARNING_RATE] * 3, max_norm=MAX_NORM, weight_decay=decay)
    run = Run(
        windowed_model_dir,
        split=(1, 1) if sequence < world_size else (3, 1, 2),
        training={"weight_decay": decay},
        model={"disable_gradient_checkpointing": False},
        max_norm=MAX_NORM,
        loss=LOSS,
        sequence=sequence,
        **engine,
    )
    traces = rank_pool(world_size).run(runs.train, run)
    for trace in traces:
        assert_same_training(trace if trace.parameters[0] else replace(trace, parameters=want.parameters), want)
