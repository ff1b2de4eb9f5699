"""Experts that are given, and told, on every trainer, against routers written out in one process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankError, RankPool
from tests.parity.megatron import models
from tests.parity.strategies import routes, runs
from tests.parity.strategies.forks import forks
from tests.parity.strategies.reference import rows
from tests.parity.strategies.routes import Replayed
from tests.parity.strategies.runs import Run
from tests.parity.strategies.test_deepspeed_train import largest_difference

Pools = Callable[[int], RankPool]
Mixtures = Callable[..., tuple[Path, Replayed]]  # of a family, and whether rows begin alike
RECOMPUTED = {"disable_gradient_checkpointing": False}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero2": ("qwen3_moe", {"stage": 2}),
    "zero3-recomputed": ("glm4_moe", {"stage": 3, "model": RECOMPUTED}),
    "fsdp2-recomputed": ("qwen3_moe", {"fsdp2": {}, "model": RECOMPUTED}),
    "fsdp2-packed": ("glm4_moe", {"fsdp2": {}, "packs": True}),
    "fsdp2-shared-sequences": ("mixtral", {"fsdp2": {}, "sequence": 2}),
    "zero3-trees": ("qwen3_moe", {"stage": 3, "shares": "on"}),
    "fsdp2-trees": ("qwen3_moe", {"fsdp2": {}, "shares": "on", "model": RECOMPUTED}),
    "fsdp2-divided-experts": ("glm4_moe", {"fsdp2": {"ep_size": 2}, "model": RECOMPUTED, "packs": True}),
}


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory) -> Mixtures:
    @cache
    def made(family: str, shares: bool = False) -> tuple[Path, Replayed]:
        model_dir = models.make(tmp_path_factory.mktemp(family) / "model", family, vocab_size=296)
        return model_dir, routes.reference(model_dir, forks() if shares else rows())

    return made


@pytest.mark.gate("zero2", "fsdp2-packed", "fsdp2-trees")
@pytest.mark.parametrize("name", list(CASES))
def test_experts_are_told_and_obeyed_and_trained_as_in_one_process(
    name: str, rank_pool: Pools, mixtures: Mixtures
) -> None:
    """As trees too: what rows have in common goes to the same experts, and is told of each row that has it."""
    family, options = CASES[name]
    model_dir, want = mixtures(family, "shares" in options)
    got = rank_pool(2).run(runs.replayed, Run(model_dir, split=(3, 1), replay="R2", **options))
    routes.assert_same(got, want)
    gradients = models.as_stored(got[0].gradients, "")
    assert largest_difference(gradients, models.as_stored(want.gradients, "")) < 2e-6


def test_given_experts_make_another_gradient(mixtures: Mixtures) -> None:
    """Else the test above would see little."""
    _, want = mixtures("qwen3_moe")
    assert any((want.told[row] != want.obeyed[row]).any() for row in want.told)


def test_a_model_without_routers_is_refused(rank_pool: Pools, tiny_model_dir: Path) -> None:
    with pytest.raises(RankError, match="Qwen2ForCausalLM has no routers of the form that is known"):
        rank_pool(1).run(runs.replayed, Run(tiny_model_dir, fsdp2={}, replay="R2"))
