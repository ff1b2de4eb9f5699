"""Experts that are given, and told, on every trainer, against routers written out in one process."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.configs.strategies.fsdp2_settings import DIVIDED_EXPERTS
from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import largest_difference
from tests.parity.families.models import tiny_config
from tests.parity.megatron import models
from tests.parity.strategies import routes, runs
from tests.parity.strategies.forks import forks
from tests.parity.strategies.reference import rows
from tests.parity.strategies.routes import Replayed
from tests.parity.strategies.runs import Run

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


UNKNOWN = {"hunyuan_v1_moe": "has no routers of the form that is known", "phimoe": "does not choose by topk"}
UNKNOWN |= {"jamba": UNKNOWN["hunyuan_v1_moe"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*DIVIDED_EXPERTS} - UNKNOWN.keys()))
def test_every_type_whose_experts_are_divided_obeys_given_ones(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    """Under ep_size as on two ranks that have all experts: what is told, log-probs and gradients. A quarter of the
    tokens have no experts given, as those of rollouts (R3) may."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(tiny_config(kind, vocab_size=296), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    model.save_pretrained(tmp_path)
    run = Run(tmp_path, split=(3, 1), replay="R2", fsdp2={}, model=RECOMPUTED)
    whole, divided = (rank_pool(2).run(runs.replayed, replace(run, fsdp2=each)) for each in ({}, {"ep_size": 2}))
    obeyed = {row: experts for found in whole for row, experts in found.obeyed.items()}
    assert any((obeyed[row] != experts).any() for found in whole for row, experts in found.told.items())
    for found in divided:
        for row, experts in found.obeyed.items():
            assert np.array_equal(np.sort(experts, -1), np.sort(obeyed[row], -1)), row
    for one, other in zip(whole, divided, strict=True):
        assert largest_difference(numbered(other.log_probs), numbered(one.log_probs)) < 1e-5
        largest = max(1.0, *(float(np.abs(gradient).max()) for gradient in one.gradients.values()))
        assert largest_difference(other.gradients, one.gradients) < 2e-6 * largest


def numbered(rows: dict[int, np.ndarray]) -> dict[str, np.ndarray]:
    return {str(row): values for row, values in rows.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(UNKNOWN))
def test_a_type_whose_routers_choose_otherwise_is_refused(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(tiny_config(kind, vocab_size=296), dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(RankError, match=UNKNOWN[kind]):
        rank_pool(1).run(runs.train, Run(tmp_path, fsdp2={}, replay="R2"))
