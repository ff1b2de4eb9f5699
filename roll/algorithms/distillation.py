"""Learning from a teacher that has seen the same rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roll.algorithms.divergence import Divergence
from roll.algorithms.loss import Aggregation, Need, inside
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

TOKEN_MEAN = Aggregation("token-mean")


@dataclass(frozen=True)
class Distillation:
    """What teacher and student have to agree on. Both distributions are over the first `vocab_size` tokens, which both
    models have. Of every response token the teacher tells its `top_k` likeliest tokens; 0: the hidden state from which
    its head makes the whole distribution."""

    divergence: Divergence
    vocab_size: int
    top_k: int = 0


@dataclass(frozen=True)
class DistillLoss:
    """weight * divergence from the teacher + (1 - weight) * negative log-likelihood, the mean over all response tokens
    of the update, rows weighted by `loss_weights`."""

    weight: float = 0.5
    aggregation: Aggregation = TOKEN_MEAN

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        log_probs = inside(outputs.log_probs, mask, "DistillLoss", "log_probs")
        divergence = inside(outputs.divergence, mask, "DistillLoss", "a teacher's lesson")
        losses = self.weight * divergence - (1 - self.weight) * log_probs
        num_tokens = mask.sum()
        metrics.add("loss", losses.detach().sum(), num_tokens)
        metrics.add("divergence_mean", divergence.detach().sum(), num_tokens)
        metrics.add("nll_mean", -log_probs.detach().sum(), num_tokens)
        total = self.aggregation.total(losses, mask, batch.loss_weights)
        return total / self.aggregation.denominator(scale), metrics
