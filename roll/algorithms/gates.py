"""Policy gradients that a gate on the ratio of new to old policy switches off, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from roll.algorithms.objectives import PolicyTokens, count_clipped, ratio_penalty
from roll.algorithms.off_policy import ratio_of
from roll.configs.tables.policy_losses import RECClip, RECRegularizer, RECWeight
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class RatioGate:
    """Group-relative REINFORCE (Yao et al., arXiv 2509.24203): -w A log p, and 0 where r is out of its range (REC):

    - `none`: nowhere.
    - `one-side`: where A > 0 and r > 1 + high, or A < 0 and r < 1 - low. With w = r the gradient is PPO's.
    - `two-side`: where r > 1 + high or r < 1 - low, whatever A is.
    - `ring`: as two-side, but a token learns again where A > 0 and r is at most 1 - low_prime, or A < 0 and r at least
      1 + high_prime: far off, on the side from which its advantage brings it back.

    w is 1, or by `weight`: sg(r) (importance_sampling), or e^(A / weight_temp) (advantage; RED-Weight). `regularizer`
    adds a term to every token, whatever its range (REP): -coef log p (forward-kl, KL(old, new) but for a constant), or
    coef (log r)^2 (k2).
    """

    clip: RECClip = "one-side"
    low: float = 0.2
    high: float = 0.2
    low_prime: float = 0.6
    high_prime: float = 2.0
    weight: RECWeight = "none"
    weight_temp: float = 1.0
    regularizer: RECRegularizer = "none"
    regularizer_coef: float = 0.1

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        ratio = ratio_of(tokens.log_ratio.detach())
        below, above = ratio < 1 - self.low, ratio > 1 + self.high
        positive, negative = tokens.advantages > 0, tokens.advantages < 0
        if self.clip == "none":
            below, above = torch.zeros_like(below), torch.zeros_like(above)
        elif self.clip == "one-side":
            below, above = below & negative, above & positive
        elif self.clip == "ring":
            below = below & ~(positive & (ratio <= 1 - self.low_prime))
            above = above & ~(negative & (ratio >= 1 + self.high_prime))
        count_clipped(metrics, below & tokens.mask, above & tokens.mask, tokens.mask)
        weight = self._weight(tokens, ratio).masked_fill(below | above, 0.0)
        return self._regularizer(tokens, metrics) - weight * tokens.advantages * tokens.log_probs

    def _weight(self, tokens: PolicyTokens, ratio: torch.Tensor) -> torch.Tensor:
        if self.weight == "importance_sampling":
            return ratio
        if self.weight == "advantage":
            return torch.exp(tokens.advantages / self.weight_temp)
        return torch.ones_like(ratio)

    def _regularizer(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        if self.regularizer == "forward-kl":
            return -self.regularizer_coef * tokens.log_probs
        if self.regularizer == "k2":
            return ratio_penalty(tokens, self.regularizer_coef, metrics)
        return torch.zeros_like(tokens.log_probs)


@dataclass(frozen=True)
class ClippedLogRatio:
    """sPPO (Vaswani et al., arXiv 2108.05828): -A log clip(r, 1 / (1 + epsilon), 1 + epsilon)."""

    epsilon: float = 0.3

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        bound = math.log(1 + self.epsilon)
        seen = tokens.log_ratio.detach()
        count_clipped(metrics, tokens.mask & (seen < -bound), tokens.mask & (seen > bound), tokens.mask)
        return -tokens.advantages * tokens.log_ratio.clamp(-bound, bound)


# --- from the keys of a YAML, as roll/configs/tables/policy_losses.py names them


def rec(
    rec_clip_mode: RECClip,
    rec_epsilon_low: float,
    rec_epsilon_high: float,
    rec_epsilon_low_prime: float,
    rec_epsilon_high_prime: float,
    rec_weight: RECWeight,
    rec_weight_temp: float,
    rec_regularizer: RECRegularizer,
    rec_regularizer_coef: float,
) -> RatioGate:
    bounds = (rec_epsilon_low, rec_epsilon_high, rec_epsilon_low_prime, rec_epsilon_high_prime)
    return RatioGate(rec_clip_mode, *bounds, rec_weight, rec_weight_temp, rec_regularizer, rec_regularizer_coef)


def sppo(sppo_epsilon: float) -> ClippedLogRatio:
    return ClippedLogRatio(sppo_epsilon)
