"""Learning from a teacher that has seen the same rows."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from roll.algorithms.loss import Aggregation, Need, inside
from roll.configs.tables.policy_losses import KdObjective
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

# How far a student's distribution over the next token is from a teacher's: p is the student's, q the teacher's.


@dataclass(frozen=True)
class Divergence:
    """One number per position from log-probs [..., outcomes] of both, which it takes at their temperatures already. 0
    where they are equal.

    - `forward_kl`: KL(q | p). Covers all that the teacher finds likely.
    - `reverse_kl`: KL(p | q). Keeps to what the teacher finds likely.
    - `js_divergence`: (KL(p | m) + KL(q | m)) / 2 with m = (p + q) / 2; at most log 2.
    - `skewed_forward_kl`: KL(q | s q + (1 - s) p), `skewed_reverse_kl`: KL(p | s p + (1 - s) q), with s = `skew`, which
      bounds the gradient where one of them is near 0 (DistiLLM, Ko et al., arXiv 2402.03898).
    - `adaptive_kl`: g KL(q | p) + (1 - g) KL(p | q). The teacher's likeliest tokens, as many as it takes to hold
      `adaptive_alpha` of its probability, are the head; g is the head's share of sum |p - q|, through which no gradient
      flows (Wu et al., arXiv 2404.02657).

    Example: q = (.5, .5) and p = (.9, .1): forward .511, reverse .368.
    """

    objective: KdObjective = "forward_kl"
    temperature: float = 1.0  # of the student
    teacher_temperature: float = 1.0
    adaptive_alpha: float = 0.5
    skew: float = 0.1

    def of_all(self, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """The divergence over the whole vocabulary."""
        return self._between(log_p, log_q, self._is_head(log_q) if self._adapts else None)

    def of_likeliest(self, log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        """The divergence over the teacher's most likely tokens, in any order, and all other tokens together as one more
        outcome, the last: [..., k + 1]. adaptive_kl never counts this outcome to the head."""
        is_head = None
        if self._adapts:
            is_head = functional.pad(self._is_head(log_q[..., :-1]), (0, 1))
        return self._between(log_p, log_q, is_head)

    @property
    def _adapts(self) -> bool:
        return self.objective == "adaptive_kl"

    def _between(self, log_p: torch.Tensor, log_q: torch.Tensor, is_head: torch.Tensor | None) -> torch.Tensor:
        match self.objective:
            case "forward_kl":
                return kl(log_q, log_p)
            case "reverse_kl":
                return kl(log_p, log_q)
            case "js_divergence":
                middle = mixture(log_p, log_q, 0.5)
                return 0.5 * (kl(log_p, middle) + kl(log_q, middle))
            case "skewed_forward_kl":
                return kl(log_q, mixture(log_q, log_p, self.skew))
            case "skewed_reverse_kl":
                return kl(log_p, mixture(log_p, log_q, self.skew))
            case "adaptive_kl":
                assert is_head is not None
                gap = (log_p.detach().exp() - log_q.exp()).abs()
                head, total = (gap * is_head).sum(-1), gap.sum(-1)
                share = torch.where(total > 0, head / total.clamp(min=torch.finfo(total.dtype).tiny), 0.5)
                return share * kl(log_q, log_p) + (1 - share) * kl(log_p, log_q)

    def _is_head(self, log_q: torch.Tensor) -> torch.Tensor:
        """The likeliest outcomes, up to the one with which they hold `adaptive_alpha`."""
        ordered = log_q.exp().sort(dim=-1, descending=True, stable=True)
        before = ordered.values.cumsum(-1) - ordered.values
        return torch.zeros_like(log_q, dtype=torch.bool).scatter(-1, ordered.indices, before < self.adaptive_alpha)


def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    """KL(a | b), summed over the last dimension. What a cannot be (-inf) adds nothing, whatever b is."""
    impossible = log_a == -math.inf
    gap = log_a.masked_fill(impossible, 0.0) - log_b.masked_fill(impossible, 0.0)
    return (log_a.exp() * gap).sum(-1)


def mixture(log_a: torch.Tensor, log_b: torch.Tensor, share: float) -> torch.Tensor:
    """log(share a + (1 - share) b)."""
    impossible = (log_a == -math.inf) & (log_b == -math.inf)  # logaddexp gives them a gradient of nan
    log_a, log_b = log_a.masked_fill(impossible, 0.0), log_b.masked_fill(impossible, 0.0)
    mixed = torch.logaddexp(log_a + math.log(share), log_b + math.log1p(-share))
    return mixed.masked_fill(impossible, -math.inf)


TOKEN_MEAN = Aggregation("token-mean")


@dataclass(frozen=True)
class Distillation:
    """Settings on which teacher and student must agree. Both distributions are over the first `vocab_size` tokens,
    which both models have. Of every response token the teacher tells its `top_k` likeliest tokens; 0: the hidden state
    from which its head makes the whole distribution."""

    divergence: Divergence
    vocab_size: int
    top_k: int = 0


@dataclass(frozen=True)
class DistillLoss:
    """weight * divergence from the teacher + (1 - weight) * negative log-likelihood, the mean over all response tokens
    of the update, rows weighted by `loss_weights`."""

    weight: float = 0.5
    aggregation: Aggregation = TOKEN_MEAN

    needs = frozenset[Need]({"log_probs"})

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
