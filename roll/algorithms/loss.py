"""Losses: frozen, picklable objects that a strategy calls inside its own forward-backward."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

Need = Literal["log_probs", "entropy", "values", "balance"]
LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class Loss(Protocol):
    """A loss over one micro batch.

    Returns the scalar to back-propagate, already divided by the global counts in `scale`: the sum of what all micro
    batches of all ranks return is the loss of the update. The strategy cancels whatever averaging its engine does by
    itself.
    """

    @property
    def needs(self) -> frozenset[Need]:
        """Token outputs that the forward pass must provide."""
        ...

    def __call__(
        self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale
    ) -> tuple[torch.Tensor, MetricSums]: ...


@dataclass(frozen=True)
class Aggregation:
    """How token losses become one number. N tokens and S rows in the update, n tokens in a row, w the weight of a row:

    - `token-mean`: sum of w * l over all tokens / N. Long rows count more (DAPO).
    - `seq-mean-token-mean`: sum of w * (row's sum / n) / S. Every row counts the same (GRPO).
    - `seq-mean-token-sum`: sum of w * row's sum / S.
    - `seq-mean-token-sum-norm`: the same / scale_factor, a constant of the run (Dr. GRPO).
    """

    mode: LossAggMode = "seq-mean-token-mean"
    scale_factor: float | None = None

    def total(self, values: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Sum what this micro batch adds to the numerator. `values` are [B, T] and 0 outside `mask`; weights None means
        1."""
        rows = values.sum(dim=1)
        if self.mode == "seq-mean-token-mean":
            # A row without response tokens has the sum 0; the clamp only avoids 0 / 0.
            rows = rows / mask.sum(dim=1).clamp(min=1)
        elif self.mode == "seq-mean-token-sum-norm":
            assert self.scale_factor is not None
            rows = rows / self.scale_factor
        return rows.sum() if weights is None else (rows * weights).sum()

    def count(self, mask: torch.Tensor) -> torch.Tensor:
        """This micro batch's share of the denominator."""
        # Rows without response tokens are not counted as samples.
        return mask.sum() if self.mode == "token-mean" else mask.any(dim=1).sum()

    def denominator(self, scale: LossScale) -> int:
        return max(scale.num_tokens if self.mode == "token-mean" else scale.num_samples, 1)


@dataclass(frozen=True)
class SupervisedLoss:
    """Negative log-likelihood of the response tokens, rows weighted by `loss_weights`."""

    aggregation: Aggregation = Aggregation("token-mean")

    needs = frozenset[Need]({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        log_probs = inside(outputs.log_probs, mask, "SupervisedLoss", "log_probs")
        total = self.aggregation.total(-log_probs, mask, batch.loss_weights)
        metrics.add("nll_mean", -log_probs.detach().sum(), mask.sum())
        return total / self.aggregation.denominator(scale), metrics


def inside(values: torch.Tensor | None, mask: torch.Tensor, owner: str, name: str) -> torch.Tensor:
    """The values with an exact 0 (and no gradient) outside the mask, whatever stood there."""
    if values is None:
        raise ValueError(f"{owner} needs {name}")
    return torch.where(mask, values, 0.0)
