"""The loss of an update in which rows of an expert join those that the policy sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from roll.algorithms.loss import Aggregation, Loss, Need, inside
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

TokenWeights = Literal["none", "uncertain"]
TOKEN_MEAN = Aggregation("token-mean")


@dataclass(frozen=True)
class ExpertLoss:
    """Negative log-likelihood of an expert's tokens; `uncertain` weighs it by p (1 - p), p the token's probability,
    through which no gradient goes (CHORD, arXiv 2508.11408). At the temperature of the update, as all of it is: the
    policy is what samples there.

    Example: a token with p = .5 has the loss .693, and weighed .173, with the gradient -.25 by its log-prob.
    """

    token_weights: TokenWeights = "none"
    aggregation: Aggregation = TOKEN_MEAN

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        log_probs = inside(outputs.log_probs, mask, "ExpertLoss", "log_probs")
        losses = -log_probs
        if self.token_weights == "uncertain":
            probs = log_probs.detach().exp()
            weights = probs * (1 - probs)
            metrics.add("expert_token_weight_mean", (weights * mask).sum(), mask.sum())
            losses = losses * weights
        total = self.aggregation.total(losses, mask, batch.loss_weights)
        metrics.add("expert_loss", total.detach(), self.aggregation.count(mask))
        metrics.add("expert_nll_mean", -log_probs.detach().sum(), mask.sum())
        return total / self.aggregation.denominator(scale), metrics


@dataclass(frozen=True)
class MixedLoss:
    """(1 - weight) * policy loss + weight * expert loss. A micro batch is all of the one kind or of the other: rows
    without advantages are the expert's, and each kind divides by counts of its own."""

    policy: Loss
    expert: ExpertLoss
    weight: float

    @property
    def needs(self) -> frozenset[Need]:
        return self.policy.needs | self.expert.needs

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        if batch.advantages is not None:
            loss, metrics = self.policy(outputs, batch, scale)
            return (1 - self.weight) * loss, metrics
        assert scale.expert is not None, "an update with an expert's rows counts them"
        loss, metrics = self.expert(outputs, batch, scale.expert)
        return self.weight * loss, metrics
