"""Updates with a load-balancing loss: Hugging Face's own of each layer in one process, and what a rank of a trainer
does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from roll.types.batch import MicroBatch, TokenOutputs
from tests.parity.strategies.reference import TEMPERATURE, BentLoss, naive_log_probs, scale_of

COEF = 0.4  # so that a third of the gradient's norm is the balance's


@dataclass(frozen=True)
class Balanced:
    """Gradients of one update by Hugging Face names, and the balance that was reported."""

    gradients: dict[str, np.ndarray]
    moe_aux_loss: float


def shares(num_rows: int, ranks: int, split: Sequence[int]) -> list[list[int]]:
    """The rows of each micro batch: every rank takes each so-manieth row, and cuts its rows in these proportions."""
    found = []
    for rank in range(ranks):
        mine = list(range(num_rows))[rank::ranks]
        bounds = np.round(np.cumsum((0, *split)) / sum(split) * len(mine)).astype(int)
        found += [mine[a:b] for a, b in pairwise(bounds)]
    return found


def reference(model_dir: Path, parts: list[MicroBatch], cut: Sequence[Sequence[int]], coef: float) -> Balanced:
    """Every row alone and unpadded, with whole logits; the routers' logits of the rows of a micro batch together, layer
    by layer, through the loss of transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    loss, scale, top_k = BentLoss(), scale_of(parts), model.config.num_experts_per_tok
    everything = sum(part.input_ids.shape[1] - 1 for part in parts)
    total, told = torch.zeros(()), 0.0
    for rows in cut:
        layers: list[list[torch.Tensor]] = [[] for _ in range(model.config.num_hidden_layers)]
        for row in rows:
            log_probs, entropy = naive_log_probs(model, parts[row], TEMPERATURE)
            total = total + loss(TokenOutputs(log_probs=log_probs, entropy=entropy), parts[row], scale)[0]
            output = model.model(input_ids=parts[row].input_ids[:, :-1], output_router_logits=True)
            for layer, logits in zip(layers, output.router_logits, strict=True):
                layer.append(logits)
        tokens = sum(parts[row].input_ids.shape[1] - 1 for row in rows)
        for layer in layers:
            value: Any = load_balancing_loss_func((torch.cat(layer),), model.config.num_experts, top_k)
            total = total + coef * value / top_k * tokens / everything
            told += float(value.detach()) / top_k * tokens / everything / len(layers)
    total.backward()
    gradients = {n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None}
    return Balanced(gradients, told)
