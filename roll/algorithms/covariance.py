"""Clip-Cov and KL-Cov (Cui et al., arXiv 2505.22617): what is done to the few tokens that take entropy from the policy.

The entropy of a softmax policy falls by the covariance of log-prob and advantage, and most of that is in few tokens:

    c_t = (log p_t - mean of log p) (A_t - mean of A)

Means, and the share of tokens that are chosen, are over the response tokens of a micro batch, as in verl: log p is the
present policy's, known only in the pass that the loss is part of. These two losses alone thus depend on the size of
micro batches. Nothing is drawn at random, and padding has no say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roll.algorithms.objectives import ClippedRatio, PolicyTokens, clip_range
from roll.algorithms.off_policy import ratio_of
from roll.types.metrics import MetricSums

PPO = ClippedRatio()


@dataclass(frozen=True)
class ClippedCovariance:
    """PPO's clipped ratio, but 0 for a share of the tokens, at least one, of those whose covariance is between two
    bounds and whose ratio is within the clip. The paper draws them at random; here they are spread evenly over those
    there are, in the order of their covariance."""

    ratio: float = 2e-4
    lowest: float = 1.0
    highest: float = 5.0
    clipped: ClippedRatio = PPO

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        losses, covariances = self.clipped(tokens, metrics), _covariances(tokens)
        within = ~self.clipped.binds(tokens)[tokens.mask]
        candidates = ((covariances > self.lowest) & (covariances < self.highest) & within).nonzero().squeeze(1)
        ordered = candidates[covariances[candidates].argsort(stable=True)]
        count = min(_share(self.ratio, len(covariances)), len(ordered))
        at = (2 * torch.arange(count, device=ordered.device) + 1) * len(ordered) // max(2 * count, 1)
        return losses.masked_fill(_chosen(ordered[at], tokens, metrics), 0.0)


@dataclass(frozen=True)
class PenalizedCovariance:
    """-r A, and coef * |log r| on top for the share of tokens, at least one, whose covariance is greatest."""

    ratio: float = 2e-4
    coef: float = 1.0

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        covariances = _covariances(tokens)
        greatest = covariances.argsort(descending=True, stable=True)[: _share(self.ratio, len(covariances))]
        penalty = torch.where(_chosen(greatest, tokens, metrics), self.coef * tokens.log_ratio.abs(), 0.0)
        return penalty - ratio_of(tokens.log_ratio) * tokens.advantages


def _covariances(tokens: PolicyTokens) -> torch.Tensor:
    """Of each response token, row after row. [tokens]"""
    log_probs, advantages = tokens.log_probs.detach()[tokens.mask], tokens.advantages[tokens.mask]
    return (log_probs - log_probs.mean()) * (advantages - advantages.mean())


def _share(ratio: float, num_tokens: int) -> int:
    return max(int(ratio * num_tokens), 1)


def _chosen(positions: torch.Tensor, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
    """True where a response token is among these, counted row after row. [B, T]"""
    among = torch.zeros_like(tokens.mask[tokens.mask])
    among[positions] = True
    metrics.add("covariance_fraction", among.sum(), tokens.mask.sum())
    return torch.zeros_like(tokens.mask).masked_scatter(tokens.mask, among)


# --- from the keys of a YAML, as roll/configs/policy_losses.py names them


def clip_cov(
    clip_cov_ratio: float,
    clip_cov_lb: float,
    clip_cov_ub: float,
    pg_clip: float,
    use_pg_clip_range: bool,
    pg_clip_low: float,
    pg_clip_high: float,
) -> ClippedCovariance:
    clipped = ClippedRatio(*clip_range(pg_clip, use_pg_clip_range, pg_clip_low, pg_clip_high))
    return ClippedCovariance(clip_cov_ratio, clip_cov_lb, clip_cov_ub, clipped)


def kl_cov(kl_cov_ratio: float, ppo_kl_coef: float) -> PenalizedCovariance:
    return PenalizedCovariance(kl_cov_ratio, ppo_kl_coef)
