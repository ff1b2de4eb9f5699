"""Experts that are given, and told, under megatron_train, against routers written out in one process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import GRADIENT_TOLERANCE, largest_difference
from tests.parity.megatron.ranks import Run
from tests.parity.strategies import routes
from tests.parity.strategies.reference import rows
from tests.parity.strategies.routes import Replayed

Pools = Callable[[int], RankPool]
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
VPP2 = PP2 | {"virtual_pipeline_model_parallel_size": 2}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
CP2: dict[str, Any] = {"context_parallel_size": 2}
RECOMPUTE: dict[str, Any] = {"recompute_granularity": "full"}
FOUR_LAYERS = {"num_hidden_layers": 4}

CASES: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "tp2-recompute": (2, "qwen3_moe", TP2 | RECOMPUTE, {}),
    "pp2-recompute": (2, "qwen3_moe", PP2 | RECOMPUTE, {"split": (1, 1, 1, 1)}),
    "vpp2-recompute": (2, "deep", VPP2 | RECOMPUTE, {"split": (1, 1, 1, 1)}),
    "pp2-layers-recomputed": (2, "qwen3_moe", PP2 | {"moe_layer_recompute": True}, {"split": (1, 1, 1, 1)}),
    "ep2": (2, "mixtral", EP2, {"split": (3, 1)}),
    "ep2-sinks": (2, "gpt_oss", EP2, {"split": (3, 1)}),
    "cp2-packed": (2, "glm4_moe", CP2, {"packs": True}),
    "tp2-ep2-packed": (4, "deepseek_v3", TP2 | EP2, {"packs": True}),
}


@pytest.fixture(scope="module")
def mixtures(family_dir: Callable[..., Path]) -> Callable[[str], tuple[Path, Replayed]]:
    @cache
    def made(name: str) -> tuple[Path, Replayed]:
        model_dir = family_dir("qwen3_moe", **FOUR_LAYERS) if name == "deep" else family_dir(name)
        return model_dir, routes.reference(model_dir, rows(vocab_size=models.VOCAB_SIZE))

    return made


@pytest.mark.parametrize("name", list(CASES))
def test_experts_are_told_and_obeyed_and_trained_as_in_one_process(
    name: str, rank_pool: Pools, mixtures: Callable[[str], tuple[Path, Replayed]]
) -> None:
    """Several micro batches are on their way through a pipeline at once, and layers that are computed again in the
    backward pass need the experts of theirs."""
    world_size, model, settings, options = CASES[name]
    model_dir, want = mixtures(model)
    run = Run(model_dir, settings, vocab_size=models.VOCAB_SIZE, replay="R2", **options)
    got = rank_pool(world_size).run(ranks.replayed, run)
    routes.assert_same(got, want)
    kept = {name: 0 * values for name, values in models.corrections(model_dir).items()}
    wanted = models.as_stored(want.gradients, model) | kept
    assert largest_difference(got[0].gradients, wanted) < GRADIENT_TOLERANCE
