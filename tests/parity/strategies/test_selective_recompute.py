"""recompute_granularity: selective against full on every trainer: not one bit of a gradient or a weight differs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.configs.sections.model import ModelArgs
from roll.models import recomputation
from roll.models.loading import load_policy
from tests.helpers.processes import RankPool
from tests.parity.compare import largest_difference
from tests.parity.families.models import tiny_config
from tests.parity.families.test_numbers import ALONE
from tests.parity.megatron import models
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA
from tests.parity.strategies.reference import BentLoss, Trace
from tests.parity.strategies.runs import Run

FULL, SELECTIVE = (
    {"disable_gradient_checkpointing": False, "recompute_granularity": how} for how in ("full", "selective")
)
TERMS = 16  # of products that are kept: those of the tiny models have 64 and more, those of adapters fewer
LAYERS, PRODUCTS = 2, 7

CASES: dict[str, dict[str, Any]] = {
    "fsdp2": {"fsdp2": {}},
    "fsdp2-packed": {"fsdp2": {"reshard_after_forward": False}, "packs": True},
    "fsdp2-shared-sequences": {"fsdp2": {}, "sequence": 2},
    "fsdp2-trees": {"fsdp2": {}, "shares": "on"},
    "fsdp2-lora": {"fsdp2": {}, "model": LORA},
    "zero0": {"stage": 0},
    "zero2-packed": {"stage": 2, "packs": True},
    "zero3": {"stage": 3},
    "zero3-lora": {"stage": 3, "model": LORA},
    "zero3-trees": {"stage": 3, "shares": "on"},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "fsdp2": {"fsdp2": {}, "replay": "R2"},
    "fsdp2-divided": {"fsdp2": {"ep_size": 2}, "packs": True, "replay": "R2"},
    "zero3": {"stage": 3, "replay": "R2"},
}


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often the result of an operation was kept in a forward pass, by its name."""
    keep, least, kept = recomputation._Keeping._keep, recomputation.LEAST_TERMS, dict[str, int]()

    def count(self: Any, op: Any, result: Any) -> None:
        kept[str(op)] = kept.get(str(op), 0) + 1
        keep(self, op, result)

    recomputation._Keeping._keep, recomputation.LEAST_TERMS = count, TERMS
    yield kept
    recomputation._Keeping._keep, recomputation.LEAST_TERMS = keep, least


def train_and_count(run: Run) -> tuple[Trace, dict[str, int]]:
    with counted() as kept:
        return runs.train(run), kept


def replay_and_count(run: Run) -> tuple[Any, dict[str, int]]:
    with counted() as kept:
        return runs.replayed(run), kept


def num_products(kept: dict[str, int]) -> int:
    return sum(count for name, count in kept.items() if "mm" in name)


@pytest.mark.gate("fsdp2-packed", "zero3")
@pytest.mark.parametrize("name", CASES)
def test_two_updates_are_the_same_to_the_bit(
    name: str, rank_pool: Callable[[int], RankPool], tiny_tied_model_dir: Path
) -> None:
    """Two ranks in micro batches of several sizes, a loss with entropy. All products of both layers are kept in every
    forward pass that a backward pass follows, and attention where it is a kernel."""
    more = CASES[name]
    model = more.get("model", {})
    rest = {key: value for key, value in more.items() if key != "model"}
    run = Run(tiny_tied_model_dir, split=(3, 1), updates=2, loss=BentLoss(entropy_coef=0.3), model=model | FULL, **rest)
    want, kept = rank_pool(2).run(train_and_count, run)[0]
    assert not kept
    got, kept = rank_pool(2).run(train_and_count, replace(run, model=model | SELECTIVE))[0]
    passes, each = 2 * 2, 2 if model else 1  # with adapters also the first factor's, of few numbers
    assert num_products(kept) == passes * LAYERS * PRODUCTS * each
    assert any("attention" in op for op in kept) or "shares" in more
    assert got.metrics == want.metrics
    assert largest_difference(got.gradients, want.gradients) == 0
    for ours, theirs in zip(got.parameters, want.parameters, strict=True):
        assert largest_difference(ours, theirs) == 0


@pytest.mark.gate("fsdp2")
@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_with_given_experts_is_the_same_to_the_bit(
    name: str, rank_pool: Callable[[int], RankPool], tmp_path: Path
) -> None:
    model_dir = models.make(tmp_path / "model", "qwen3_moe", vocab_size=296)
    run = Run(model_dir, split=(3, 1), model=FULL, **MIXTURES[name])
    want, kept = rank_pool(2).run(replay_and_count, run)[0]
    assert not kept
    got, kept = rank_pool(2).run(replay_and_count, replace(run, model=SELECTIVE))[0]
    assert num_products(kept) > 2 * 2 * 4
    assert largest_difference(got.gradients, want.gradients) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALONE)
def test_every_type_has_the_same_gradients_to_the_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also types that change the output of a layer in place, in one process."""
    monkeypatch.setattr(recomputation, "LEAST_TERMS", TERMS // 2)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(tiny_config(kind), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    model.save_pretrained(tmp_path)
    ids = torch.randint(3, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    gradients: list[dict[str, torch.Tensor]] = []
    for how in (FULL, SELECTIVE):
        loaded = load_policy(ModelArgs(model_name_or_path=str(tmp_path), dtype="fp32", **how))
        loaded.module(ids, torch.ones_like(ids, dtype=torch.bool))[0].pow(2).sum().backward()
        named = loaded.module.named_parameters()
        gradients.append({name: weight.grad for name, weight in named if weight.grad is not None})
    full, selective = gradients
    assert full.keys() == selective.keys()
    assert all(torch.equal(full[name], selective[name]) and bool(full[name].isfinite().all()) for name in full)
