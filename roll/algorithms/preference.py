"""Losses of pairs of answers to one prompt, the better one first: rows 2i and 2i + 1 of a batch."""

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from roll.algorithms.loss import Need, inside
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class DPOLoss:
    """Direct preference optimization (Rafailov et al., arXiv 2305.18290), the mean over pairs. Of an answer y to x with
    G = log p(y|x) - log p_ref(y|x), sums over its tokens, the reward is beta * G. With h = G(chosen) - G(rejected):

    - `-(1 - s) * log sigmoid(beta * h) - s * log sigmoid(-beta * h)`; s = `label_smoothing` is the share of pairs that
      are labelled the wrong way round (cDPO, Mitchell);
    - with `ipo`, `(h - 1 / (2 * beta))^2` (Azar et al., arXiv 2310.12036, equation 17).

    `average_log_probs`: means over the answer's tokens in place of sums. `reference_free`: log p_ref is 0.
    `sft_loss_coef` adds so much of the chosen answer's negative log-likelihood per token (Pang et al., arXiv
    2404.19733).
    """

    beta: float = 0.1
    ipo: bool = False
    label_smoothing: float = 0.0
    average_log_probs: bool = False
    reference_free: bool = False
    sft_loss_coef: float = 0.0

    needs = frozenset[Need]({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask = batch.response_mask
        log_probs = inside(outputs.log_probs, mask, "DPOLoss", "log_probs")
        reference = log_probs.new_zeros(()) if self.reference_free else batch.ref_log_probs
        reference = inside(reference, mask, "DPOLoss", "ref_log_probs")
        total, metrics = self.of_rows(log_probs.sum(1), (log_probs - reference).sum(1), mask.sum(1))
        return total / num_pairs(scale), metrics

    def of_rows(
        self, log_probs: torch.Tensor, gaps: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, MetricSums]:
        """The sum over pairs. Of each row: log p, log p - log p_ref, and tokens of the answer."""
        if self.average_log_probs:
            gaps = gaps / lengths
        chosen, rejected = gaps[0::2], gaps[1::2]
        h = chosen - rejected
        if self.ipo:
            losses = (h - 1 / (2 * self.beta)).square()
        else:
            wrong = self.label_smoothing
            losses = -(1 - wrong) * logsigmoid(self.beta * h) - wrong * logsigmoid(-self.beta * h)
        nll = -log_probs[0::2] / lengths[0::2]
        total = (losses + self.sft_loss_coef * nll).sum()

        metrics, count = MetricSums(), len(h)
        metrics.add("loss", total.detach(), count)
        metrics.add("nll_chosen_mean", nll.detach().sum(), count)
        add_comparison(metrics, self.beta * chosen.detach(), self.beta * rejected.detach())
        return total, metrics


@dataclass(frozen=True)
class BradleyTerryLoss:
    """A reward model's loss, the mean over pairs of -log sigmoid(r(chosen) - r(rejected) - margin). r is the value at
    the one token of a row that its response mask has (Bradley and Terry, 1952; the margin of Touvron et al., arXiv
    2307.09288)."""

    needs = frozenset[Need]({"values"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        values = inside(outputs.values, batch.response_mask, "BradleyTerryLoss", "values")
        if batch.margins is None:
            raise ValueError("BradleyTerryLoss needs margins")
        total, metrics = self.of_rows(values.sum(1), batch.margins)
        return total / num_pairs(scale), metrics

    def of_rows(self, rewards: torch.Tensor, margins: torch.Tensor) -> tuple[torch.Tensor, MetricSums]:
        """The sum over pairs."""
        chosen, rejected = rewards[0::2], rewards[1::2]
        total = -logsigmoid(chosen - rejected - margins[0::2]).sum()
        metrics = MetricSums()
        metrics.add("loss", total.detach(), len(chosen))
        add_comparison(metrics, chosen.detach(), rejected.detach())
        return total, metrics


def num_pairs(scale: LossScale) -> float:
    """Number of pairs in the update. Each pair has two rows, both with response tokens."""
    return max(scale.num_samples / 2, 1)


def add_comparison(metrics: MetricSums, chosen: torch.Tensor, rejected: torch.Tensor) -> None:
    """Add metrics of the rewards of pairs. Equal ones count as half of a pair that is ordered rightly."""
    count = len(chosen)
    right = (chosen > rejected).float() + 0.5 * (chosen == rejected).float()
    metrics.add("accuracy", right.sum(), count)
    metrics.add("reward_chosen_mean", chosen.sum(), count)
    metrics.add("reward_rejected_mean", rejected.sum(), count)
    metrics.add("reward_margin_mean", (chosen - rejected).sum(), count)
