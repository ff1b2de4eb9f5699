"""The load-balancing loss of deepspeed_train and fsdp2_train against Hugging Face's own, layer by layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import largest_difference
from tests.parity.megatron import models
from tests.parity.strategies import balance, runs
from tests.parity.strategies.balance import COEF, shares
from tests.parity.strategies.reference import rows
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
SPLIT = (3, 1)

CASES: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "zero2": (2, SPLIT, {"stage": 2}),
    "zero3": (2, SPLIT, {"stage": 3}),
    "fsdp2": (2, SPLIT, {"fsdp2": {}, "model": {"disable_gradient_checkpointing": False}}),
    "fsdp2-packed": (2, SPLIT, {"fsdp2": {}, "packs": True}),
    "fsdp2-shared-sequences": (2, SPLIT, {"fsdp2": {}, "sequence": 2}),
    "fsdp2-divided-experts": (2, SPLIT, {"fsdp2": {"ep_size": 2}, "model": {"disable_gradient_checkpointing": False}}),
}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(tmp_path_factory.mktemp("mixture"), "qwen3_moe", vocab_size=296)


def run_of(name: str, model_dir: Path) -> tuple[int, Run]:
    ranks, split, given = CASES[name]
    model = {"moe_aux_loss_coef": COEF} | given.get("model", {})
    return ranks, Run(model_dir, split=split, **{**given, "model": model})


@pytest.mark.gate("zero3", "fsdp2-packed")
@pytest.mark.parametrize("name", list(CASES))
def test_gradient_and_value_are_those_of_hugging_face_layer_by_layer(
    name: str, rank_pool: Pools, mixture: Path
) -> None:
    """Micro batches of different sizes, rows of different lengths, and one without anything to learn from, which counts
    for the balance all the same."""
    ranks, run = run_of(name, mixture)
    want = balance.reference(mixture, rows(), shares(8, ranks // run.sequence, run.split), COEF)
    got = rank_pool(ranks).run(runs.balanced, run)
    assert largest_difference(got[0].gradients, want.gradients) < 2e-6
    assert got[0].moe_aux_loss == pytest.approx(want.moe_aux_loss, rel=1e-5) and want.moe_aux_loss > 1.01


def test_the_balance_is_a_good_part_of_that_gradient(mixture: Path) -> None:
    """Else the test above would see little of it."""
    with_it, without = (balance.reference(mixture, rows(), shares(8, 2, SPLIT), coef) for coef in (COEF, 0.0))
    assert largest_difference(with_it.gradients, without.gradients) > 1e-3


def test_a_model_without_experts_is_refused(rank_pool: Pools, tiny_model_dir: Path) -> None:
    run = Run(tiny_model_dir, fsdp2={}, model={"moe_aux_loss_coef": COEF})
    with pytest.raises(RankError, match="Qwen2ForCausalLM of transformers has no load-balancing loss"):
        rank_pool(1).run(runs.balanced, run)
