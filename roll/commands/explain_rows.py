"""The worked examples of algorithms that learn from given answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roll.algorithms.loss import Loss, SupervisedLoss
from roll.configs.presets.preset import Preset
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.dpo.settings import dpo_loss
from roll.types.batch import LossScale, PairRows, TokenOutputs
from roll.types.collate import pad

P = ((0.5, 0.8), (0.5, 0.4, 0.9))
"""p of every token of two answers; of a pair the first is the better one."""
P_REF = ((0.4, 0.8), (0.5, 0.5, 0.9))


@dataclass(frozen=True)
class WorkedRows:
    """The gradient of the loss by the log-prob of every token, and the loss of the update."""

    gradients: tuple[tuple[float, ...], ...]
    loss: float


def worked_rows(preset: Preset) -> WorkedRows:
    """Two answers as one update, by the code that a run calls."""
    loss, micro = _loss(preset), pad(_rows(), np.arange(len(P)))
    log_probs = torch.zeros(micro.input_ids.shape)
    for row, own in enumerate(P):
        log_probs[row, : len(own)] = torch.tensor(own).log()
    log_probs.requires_grad_()
    scale = LossScale(int(micro.response_mask.sum()), len(P))
    total, _ = loss(TokenOutputs(log_probs=log_probs), micro, scale)
    (gradient,) = torch.autograd.grad(total, log_probs)
    by_row = tuple(tuple(gradient[row, : len(own)].tolist()) for row, own in enumerate(P))
    return WorkedRows(by_row, float(total.detach()))


def worked_lines(preset: Preset) -> Iterator[tuple[str, ...]]:
    """A table of them, and then the loss by itself."""
    found, is_pair = worked_rows(preset), preset.pipeline == "dpo"
    yield ("answer", "p of its tokens", *(["p_ref of them"] if is_pair else []), "d loss / d log p of its tokens")
    for i, name in enumerate(("better", "worse") if is_pair else ("1", "2")):
        yield (name, numbers(P[i]), *([numbers(P_REF[i])] if is_pair else []), numbers(found.gradients[i]))


def numbers(values: Sequence[float]) -> str:
    """Example: (0.5, 0.5) is "0.5 each", (1.0,) is "1"."""
    different = values[:1] if len(set(values)) == 1 and len(values) > 1 else values
    return " ".join(f"{value:.4g}" for value in different) + (" each" if len(different) < len(values) else "")


def _loss(preset: Preset) -> Loss:
    if preset.pipeline == "sft":
        return SupervisedLoss()
    return dpo_loss(DPOConfig.model_validate({"algorithm": preset.name, "pretrain": "model"}))


def _rows() -> PairRows:
    def flat(by_row: Sequence[Sequence[float]]) -> np.ndarray:
        return np.log(np.concatenate([np.array(own) for own in by_row])).astype(np.float32)

    tokens = sum(map(len, P))
    return PairRows(
        lengths=np.array([len(own) for own in P], np.int32),
        input_ids=np.zeros(tokens, np.int32),
        response_mask=np.ones(tokens, bool),
        loss_weights=np.ones(len(P), np.float32),
        margins=np.zeros(len(P), np.float32),
        ref_log_probs=flat(P_REF),
    )
