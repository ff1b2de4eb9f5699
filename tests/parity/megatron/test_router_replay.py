"""Experts that are given, and told, under megatron_train, against routers written out in one process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, prediction, ranks
from tests.parity.megatron.compare import GRADIENT_TOLERANCE, largest_difference
from tests.parity.megatron.layouts import CP2, EP2, PP2, RECOMPUTE, VPP2
from tests.parity.megatron.layouts import TP2_SP as TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies import routes
from tests.parity.strategies.reference import rows
from tests.parity.strategies.routes import Replayed

Pools = Callable[[int], RankPool]
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
    "pp2-with-head": (2, "glm4_moe-joint", PP2 | RECOMPUTE, {"split": (3, 1), "head": "joint"}),
    "ep2-with-head": (2, "deepseek_v3-standalone", EP2, {"packs": True, "head": "standalone"}),
}


@pytest.fixture(scope="module")
def mixtures(
    family_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Replayed]]:
    @cache
    def made(name: str) -> tuple[Path, Replayed]:
        family, _, mode = name.partition("-")
        if mode:
            model_dir = prediction.make(tmp_path_factory.mktemp(name), family)
        else:
            model_dir = family_dir("qwen3_moe", **FOUR_LAYERS) if name == "deep" else family_dir(name)
        further = prediction.further_loss(model_dir) if mode == "joint" else None
        return model_dir, routes.reference(model_dir, rows(vocab_size=models.VOCAB_SIZE), further)

    return made


@pytest.mark.gate("tp2-recompute", "ep2")
@pytest.mark.parametrize("name", list(CASES))
def test_experts_are_told_and_obeyed_and_trained_as_in_one_process(
    name: str, rank_pool: Pools, mixtures: Callable[[str], tuple[Path, Replayed]]
) -> None:
    """Several micro batches are on their way through a pipeline at once, and layers that are computed again in the
    backward pass need the experts of theirs. A head for further tokens chooses its own."""
    world_size, model, settings, options = CASES[name]
    model_dir, want = mixtures(model)
    run = Run(model_dir, settings, vocab_size=models.VOCAB_SIZE, replay="R2", **options)
    got = rank_pool(world_size).run(ranks.replayed, run)
    routes.assert_same(got, want)
    kept = {name: 0 * values for name, values in models.corrections(model_dir).items()}
    wanted = models.as_stored(want.gradients, model) | kept
    found = got[0].gradients
    if "head" in options:  # whose own gradients are compared in test_prediction_head.py
        found, wanted = (
            {name: values for name, values in each.items() if not name.startswith(prediction.AT)}
            for each in (found, wanted)
        )
    assert largest_difference(found, wanted) < GRADIENT_TOLERANCE
