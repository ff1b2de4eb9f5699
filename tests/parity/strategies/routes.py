"""Rows whose tokens go to given experts: in one process, by each family's formula, and on a rank of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from roll.distributed.strategy.base import TrainStrategy
from roll.types.batch import MicroBatch, TokenOutputs
from tests.parity.strategies.reference import TEMPERATURE, BentLoss, join, naive_log_probs, scale_of


@dataclass(frozen=True)
class Replayed:
    """What a rank found. `told`: the experts [T, layers, k] of its rows by their number, where none were given, of the
    tokens that were computed; `obeyed`: where they were. Gradients of one update under given experts."""

    told: dict[int, np.ndarray]
    obeyed: dict[int, np.ndarray]
    log_probs: dict[int, np.ndarray]
    gradients: dict[str, np.ndarray]


def given(parts: Sequence[MicroBatch], model_dir: Path) -> list[MicroBatch]:
    """The rows with random experts, the same for what a row has in common with one before it; a quarter of the tokens
    have none."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    routers: list[Any] = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    generator, made = np.random.default_rng(3), []
    for part in parts:
        shape = (part.input_ids.shape[1], len(routers), routers[0].num_experts)
        chosen = generator.random(shape).argsort(-1)[..., : routers[0].top_k].astype(np.int16)
        chosen[generator.random(shape[0]) < 0.25] = -1
        for other in made:
            shorter = min(part.input_ids.shape[1], other.input_ids.shape[1])
            alike = (part.input_ids[0, :shorter] == other.input_ids[0, :shorter]).int().cumprod(0).sum()
            chosen[:alike] = other.routes[0, :alike].numpy()
        made.append(replace(part, routes=torch.from_numpy(chosen)[None]))
    return made


class Forced:
    """A Hugging Face mixture, a row at a time, whose routers are written out anew."""

    def __init__(self, model_dir: Path):
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.routes: torch.Tensor | None = None
        self.chosen: dict[int, torch.Tensor] = {}
        routers = [m for m in self.model.modules() if type(m).__name__.endswith("Router")]
        for layer, router in enumerate(routers):
            router.forward = MethodType(_forward(self, layer, router.forward), router)

    @contextmanager
    def row(self, part: MicroBatch) -> Iterator[None]:
        self.routes = None if part.routes is None else part.routes[0].long()
        yield
        self.routes = None


def _forward(owner: Forced, layer: int, plain: Any) -> Any:
    def forward(router: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = plain(hidden)[2]
        chosen = own
        if owner.routes is not None:
            asked = owner.routes[:, layer]
            chosen = torch.where(asked < 0, own, asked)
        owner.chosen[layer] = chosen
        flat, bias = hidden.reshape(-1, hidden.shape[-1]).float(), getattr(router, "bias", None)
        logits = functional.linear(flat, router.weight.float(), bias)
        if hasattr(router, "e_score_correction_bias"):
            weights = logits.sigmoid()[torch.arange(len(chosen))[:, None], chosen]
            return logits, weights / weights.sum(-1, keepdim=True) * router.routed_scaling_factor, chosen
        weights = logits.exp()[torch.arange(len(chosen))[:, None], chosen]
        return (
            logits,
            weights / weights.sum(-1, keepdim=True),
            chosen,
        )  # softmax over the chosen, as norm_topk_prob says

    return forward


def reference(
    model_dir: Path, parts: Sequence[MicroBatch], further: Callable[[Any, MicroBatch], torch.Tensor] | None = None
) -> Replayed:
    """`further`: what a row of the model adds to the loss."""
    forced, loss, scale = Forced(model_dir), BentLoss(), scale_of(list(parts))
    told, obeyed, scores = {}, {}, {}
    for index, part in enumerate(given(parts, model_dir)):
        with torch.no_grad():
            forced.model(input_ids=part.input_ids)
        told[index] = stacked(forced.chosen)
        with forced.row(part):
            log_probs, entropy = naive_log_probs(forced.model, part, TEMPERATURE)
            obeyed[index], scores[index] = stacked(forced.chosen), log_probs[0].detach().numpy()
            total = loss(TokenOutputs(log_probs=log_probs, entropy=entropy), part, scale)[0]
            (total if further is None else total + further(forced.model, part)).backward()
    gradients = {n: p.grad.numpy().copy() for n, p in forced.model.named_parameters() if p.grad is not None}
    return Replayed(told, obeyed, scores, gradients)


def stacked(chosen: dict[int, torch.Tensor]) -> np.ndarray:
    return torch.stack([chosen[layer] for layer in sorted(chosen)], dim=1).numpy().astype(np.int16)


def look(strategy: TrainStrategy, parts: Sequence[MicroBatch], model_dir: Path) -> Replayed:
    """What a trainer says of its rows, scored in two micro batches; the gradients are another's business."""
    mine = list(range(len(parts)))[strategy.dp_rank :: strategy.dp_size]
    free, forced = list(parts), given(parts, model_dir)
    told, obeyed, scores = {}, {}, {}
    for kind, found in ((free, told), (forced, obeyed)):
        halves = [mine[:1], mine[1:]]
        outputs = strategy.log_probs([join([kind[row] for row in half]) for half in halves], TEMPERATURE)
        for half, output in zip(halves, outputs, strict=True):
            assert output.routes is not None and output.log_probs is not None
            for place, row in enumerate(half):
                width = parts[row].input_ids.shape[1]
                found[row] = output.routes[place, :width].numpy()
                scores[row] = output.log_probs[place, :width].numpy()
    return Replayed(told, obeyed, scores, {})


def assert_same(got: Sequence[Replayed], want: Replayed) -> None:
    """Of every row but its last token, which nothing needs and some do not compute. Experts are sets: their order is
    the kernel's."""
    rows = sorted({row for found in got for row in found.told})
    assert rows == sorted(want.told)
    for found in got:
        for kind in ("told", "obeyed"):
            for row, experts in getattr(found, kind).items():
                expected = getattr(want, kind)[row][:-1]
                assert np.array_equal(np.sort(experts[:-1], -1), np.sort(expected, -1)), (kind, row)
        for row, log_probs in found.log_probs.items():
            assert np.abs(log_probs - want.log_probs[row]).max() < 1e-5
