"""What a response token adds to the policy loss, given its advantage and the ratio r = p / p_old of new to old policy.

Frozen, picklable objects that `PolicyLoss` calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from roll.algorithms.off_policy import ratio_of, row_means
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class PolicyTokens:
    """What an objective sees of a micro batch. [B, T] each."""

    log_probs: torch.Tensor
    log_ratio: torch.Tensor  # log r: a token's own, or shared by its row or turn; 0 where p_old is the present policy
    advantages: torch.Tensor  # 0 outside the mask
    mask: torch.Tensor
    is_product: bool = False
    """log r is the sum over its row."""
    chosen: torch.Tensor | None = None
    """bool: picked out of the whole update before it began; None where nothing is."""


class Objective(Protocol):
    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        """The loss of each token, 0 outside `mask`."""
        ...


@dataclass(frozen=True)
class ClippedRatio:
    """PPO: -min(r A, clip(r, 1 - low, 1 + high) A), None for no bound (Schulman et al., arXiv 1707.06347). With
    `dual_clip` c it is at most -c A where A < 0 (Ye et al., arXiv 1912.09729)."""

    low: float | None = 0.2
    high: float | None = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be above 1, not {self.dual_clip}")

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        ratio, (below, above) = ratio_of(tokens.log_ratio), self._out_of_range(tokens)
        objective = torch.minimum(ratio * tokens.advantages, ratio.clamp(*self._range) * tokens.advantages)
        negative = tokens.advantages < 0
        count_clipped(metrics, below, above, tokens.mask)
        if self.dual_clip is not None:
            floor = self.dual_clip * tokens.advantages
            metrics.add("dual_clip_fraction", (negative & (objective.detach() < floor)).sum(), tokens.mask.sum())
            objective = torch.where(negative, torch.maximum(objective, floor), objective)
        return -objective

    def binds(self, tokens: PolicyTokens) -> torch.Tensor:
        """True where the clip takes a token's gradient. [B, T]"""
        below, above = self._out_of_range(tokens)
        return below | above

    def _out_of_range(self, tokens: PolicyTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens whose clip is active: below the range with A < 0, and above it with A > 0. [B, T] each."""
        lowest, highest = self._range
        seen = ratio_of(tokens.log_ratio.detach())
        return (tokens.advantages < 0) & (seen < lowest), (tokens.advantages > 0) & (seen > highest)

    @property
    def _range(self) -> tuple[float, float]:
        return 0.0 if self.low is None else 1 - self.low, float("inf") if self.high is None else 1 + self.high


@dataclass(frozen=True)
class PolicyGradient:
    """-A log p / (1 + damping): the ratio does not enter (Williams, 1992). With a damping it is the step of online
    policy mirror descent whose regularisation is towards the present policy (Trinity-RFT, arXiv 2505.17826)."""

    damping: float = 0.0

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        return -tokens.advantages * tokens.log_probs / (1 + self.damping)


@dataclass(frozen=True)
class BoundedWeight:
    """-w A log p with w = clip(r, lowest, highest), through which no gradient flows: truncated importance sampling
    (IMPALA's V-trace, arXiv 1802.01561) and CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5). Unlike with
    PPO's clip, a token out of bounds goes on learning. `drops_settled` takes that back for tokens that have gone the
    way of their advantage, as in equation 7 there: w is 0 where A > 0 and r > highest, or A < 0 and r < lowest."""

    lowest: float = 0.0
    highest: float = 1.0
    drops_settled: bool = False

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        ratio = ratio_of(tokens.log_ratio.detach())
        below, above = ratio < self.lowest, ratio > self.highest
        count_clipped(metrics, tokens.mask & below, tokens.mask & above, tokens.mask)
        weight = ratio.clamp(self.lowest, self.highest)
        if self.drops_settled:
            settled = ((tokens.advantages > 0) & above) | ((tokens.advantages < 0) & below)
            metrics.add("settled_fraction", settled.sum(), tokens.mask.sum())
            weight = weight.masked_fill(settled, 0.0)
        return -weight * tokens.advantages * tokens.log_probs


@dataclass(frozen=True)
class TaperedWeight:
    """TOPR (Le Roux et al., arXiv 2503.14286): -A log p where A > 0, so that good answers are learned however
    unlikely they have become, and -min(r, 1) A log p where A < 0, so that bad ones are left alone once they are. Both
    have a weight of their own. The paper's ratio is the product over the row."""

    positive_weight: float = 1.0
    negative_weight: float = 1.0

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        ratio, negative = ratio_of(tokens.log_ratio.detach()), tokens.advantages < 0
        nowhere = torch.zeros_like(tokens.mask)
        count_clipped(metrics, nowhere, negative & (ratio > 1), tokens.mask)
        tapered = self.negative_weight * ratio.clamp(max=1.0)
        return -torch.where(negative, tapered, self.positive_weight) * tokens.advantages * tokens.log_probs


@dataclass(frozen=True)
class SquaredPenalty:
    """-A log p + tau / 2 * (log r)^2: the mirror-descent step of Kimi k1.5 (arXiv 2501.12599, equation 3), which holds
    the policy near the old one without a clip. The paper's ratio is the product over the row, of which the penalty
    counts once: each of its n tokens has 1 / n of it."""

    tau: float = 0.1

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        return ratio_penalty(tokens, 0.5 * self.tau, metrics) - tokens.advantages * tokens.log_probs


def ratio_penalty(tokens: PolicyTokens, coef: float, metrics: MetricSums) -> torch.Tensor:
    """coef (log r)^2 of each token; of a ratio of the whole row each of its n tokens has 1 / n."""
    squares = tokens.log_ratio.square()
    if tokens.is_product:
        squares = squares / tokens.mask.sum(dim=1, keepdim=True).clamp(min=1)
    penalty = torch.where(tokens.mask, coef * squares, 0.0)
    metrics.add("ratio_penalty_mean", penalty.detach().sum(), tokens.mask.sum())
    return penalty


@dataclass(frozen=True)
class SoftGate:
    """SAPO (arXiv 2511.20347): -f(r) A with f(r) = 4 / tau * sigmoid(tau (r - 1)), a gate in place of PPO's clip. Its
    slope is 1 at r = 1 and fades on both sides, the faster the larger tau is; one for A > 0, one for the others."""

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        tau = torch.where(tokens.advantages > 0, self.tau_positive, self.tau_negative)
        gate = torch.sigmoid(tau * (ratio_of(tokens.log_ratio) - 1))
        slope = (4 * gate * (1 - gate)).detach()
        metrics.add("soft_gate_mean", (slope * tokens.mask).sum(), tokens.mask.sum())
        return -4 / tau * gate * tokens.advantages


@dataclass(frozen=True)
class ClippedGeometricMean:
    """GMPO (arXiv 2507.20673): -s A with s the geometric mean of the row's ratios, each kept below e^high where A > 0
    and above e^-low where A < 0. One token far from the old policy weighs less than in the mean of r A, so the bounds
    are wide; a token out of them does not learn, though its row does."""

    low: float = 0.4
    high: float = 0.4

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        log_ratio = torch.where(tokens.mask, tokens.log_ratio, 0.0)  # a shared ratio stands outside the mask, too
        positive, negative = tokens.advantages > 0, tokens.advantages < 0
        seen = log_ratio.detach()
        count_clipped(metrics, negative & (seen < -self.low), positive & (seen > self.high), tokens.mask)
        bounded = torch.where(positive, log_ratio.clamp(max=self.high), log_ratio)
        bounded = torch.where(negative, log_ratio.clamp(min=-self.low), bounded)
        return -ratio_of(row_means(bounded, tokens.mask)) * tokens.advantages


def count_clipped(metrics: MetricSums, low: torch.Tensor, high: torch.Tensor, mask: torch.Tensor) -> None:
    """Tokens cut below the range and above it, as shares of those there are."""
    num_tokens, num_low, num_high = mask.sum(), low.sum(), high.sum()
    metrics.add("clip_fraction", num_low + num_high, num_tokens)
    metrics.add("clip_low_fraction", num_low, num_tokens)
    metrics.add("clip_high_fraction", num_high, num_tokens)


# --- from the keys of a YAML, as roll/configs/tables/policy_losses.py names them


def ppo(
    pg_clip: float,
    use_pg_clip_range: bool,
    pg_clip_low: float,
    pg_clip_high: float,
    dual_clip_loss: bool,
    dual_clip_ratio_c: float,
) -> ClippedRatio:
    low, high = clip_range(pg_clip, use_pg_clip_range, pg_clip_low, pg_clip_high)
    return ClippedRatio(low, high, dual_clip_ratio_c if dual_clip_loss else None)


def vanilla() -> PolicyGradient:
    return PolicyGradient()


def opmd(opmd_tau: float) -> PolicyGradient:
    return PolicyGradient(opmd_tau)


def clip_range(pg_clip: float, use_pg_clip_range: bool, pg_clip_low: float, pg_clip_high: float) -> tuple[float, float]:
    """How far the ratio may go below 1 and above."""
    return (pg_clip_low, pg_clip_high) if use_pg_clip_range else (pg_clip, pg_clip)


def tis(tis_lower_bound: float, tis_upper_bound: float) -> BoundedWeight:
    return BoundedWeight(tis_lower_bound, tis_upper_bound)


def cispo(cispo_epsilon_low: float, cispo_epsilon_high: float, cispo_use_unified_mask: bool) -> BoundedWeight:
    return BoundedWeight(max(0.0, 1 - cispo_epsilon_low), 1 + cispo_epsilon_high, cispo_use_unified_mask)


def topr(topr_positive_weight: float, topr_negative_weight: float) -> TaperedWeight:
    return TaperedWeight(topr_positive_weight, topr_negative_weight)


def kimi15(kimi15_tau: float) -> SquaredPenalty:
    return SquaredPenalty(kimi15_tau)


def sapo(sapo_tau_positive: float, sapo_tau_negative: float) -> SoftGate:
    return SoftGate(sapo_tau_positive, sapo_tau_negative)


def gmpo(gmpo_clip_low: float, gmpo_clip_high: float) -> ClippedGeometricMean:
    return ClippedGeometricMean(gmpo_clip_low, gmpo_clip_high)
