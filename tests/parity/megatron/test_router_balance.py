"""The load-balancing loss of megatron_train against Hugging Face's own, layer by layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, ranks
from tests.parity.megatron.compare import GRADIENT_TOLERANCE, largest_difference
from tests.parity.megatron.layouts import TP2_SP as TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies import balance
from tests.parity.strategies.balance import COEF, shares
from tests.parity.strategies.reference import rows

Pools = Callable[[int], RankPool]
SPLIT = (3, 1)
CP2, PP2, EP2 = ({f"{kind}_parallel_size": 2} for kind in ("context", "pipeline_model", "expert_model"))

# Ranks, data-parallel ranks, settings, and what else is asked for; "family" of the model, else Qwen3-MoE.
CASES: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "tp2": (2, 1, TP2, {}),
    "cp2-packed": (2, 1, CP2, {"packs": True}),
    "ep2-recompute": (2, 2, EP2 | {"recompute_granularity": "full"}, {}),
    "pp2": (2, 1, PP2, {}),
    "cp2": (2, 1, CP2, {}),
    "dp2-layer-recompute": (2, 2, {"moe_layer_recompute": True}, {"packs": True}),
    "ep2-sinks": (2, 2, EP2, {"family": "gpt_oss"}),
    "tp2-pp2": (4, 1, TP2 | PP2, {}),
    "tp2-ep2": (4, 2, TP2 | EP2, {}),
}
FAST = ("tp2", "cp2-packed", "ep2-recompute")


@pytest.mark.gate("tp2")
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_gradient_and_value_are_those_of_hugging_face_layer_by_layer(
    name: str, rank_pool: Pools, family_dir: Callable[..., Path]
) -> None:
    """Micro batches of different sizes, whose tokens are shared by position among ranks of one replica, recomputed
    layers, ranks that make a pass for the others' sake, and a row without anything to learn from."""
    count, replicas, settings, given = CASES[name]
    given = dict(given)
    family = given.pop("family", "qwen3_moe")
    model_dir, parts = family_dir(family), rows(vocab_size=models.VOCAB_SIZE)
    run = Run(model_dir, settings, SPLIT, vocab_size=models.VOCAB_SIZE, model={"moe_aux_loss_coef": COEF}, **given)
    want = balance.reference(model_dir, parts, shares(len(parts), replicas, SPLIT), COEF)
    got = rank_pool(count).run(ranks.balanced, run)[0]
    stored = models.as_stored(want.gradients, family)
    assert largest_difference(got.gradients, stored) < GRADIENT_TOLERANCE
    assert got.moe_aux_loss == pytest.approx(want.moe_aux_loss, rel=1e-5)
