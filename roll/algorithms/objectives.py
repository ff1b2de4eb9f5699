"""Objectives: what a response token adds to the policy loss, given its advantage and the ratio r = p / p_old of new to
old policy.

Frozen, picklable objects that `PolicyLoss` calls.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from roll.algorithms.off_policy import ratio_of, row_means
from roll.configs.tables.policy_losses import RECClip, RECRegularizer, RECWeight
from roll.types.batch import TrainBatch
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class PolicyTokens:
    """Columns of a micro batch that an objective reads, [B, T] each."""

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
        ratio = ratio_of(tokens.log_ratio.detach())
        return (tokens.advantages < 0) & (ratio < lowest), (tokens.advantages > 0) & (ratio > highest)

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
        detached = log_ratio.detach()
        count_clipped(metrics, negative & (detached < -self.low), positive & (detached > self.high), tokens.mask)
        bounded = torch.where(positive, log_ratio.clamp(max=self.high), log_ratio)
        bounded = torch.where(negative, log_ratio.clamp(min=-self.low), bounded)
        return -ratio_of(row_means(bounded, tokens.mask)) * tokens.advantages


def count_clipped(metrics: MetricSums, low: torch.Tensor, high: torch.Tensor, mask: torch.Tensor) -> None:
    """Tokens cut below the range and above it, as shares of those there are."""
    num_tokens, num_low, num_high = mask.sum(), low.sum(), high.sum()
    metrics.add("clip_fraction", num_low + num_high, num_tokens)
    metrics.add("clip_low_fraction", num_low, num_tokens)
    metrics.add("clip_high_fraction", num_high, num_tokens)


# --- from the keys of a YAML, in the order of roll/configs/tables/policy_losses.py


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


def clip_range(pg_clip: float, use_pg_clip_range: bool, pg_clip_low: float, pg_clip_high: float) -> tuple[float, float]:
    """How far the ratio may go below 1 and above."""
    return (pg_clip_low, pg_clip_high) if use_pg_clip_range else (pg_clip, pg_clip)


def cispo(cispo_epsilon_low: float, cispo_epsilon_high: float, cispo_use_unified_mask: bool) -> BoundedWeight:
    return BoundedWeight(max(0.0, 1 - cispo_epsilon_low), 1 + cispo_epsilon_high, cispo_use_unified_mask)


# Clip-Cov and KL-Cov (Cui et al., arXiv 2505.22617): what is done to the few tokens that take entropy from the policy.
#
# The entropy of a softmax policy falls by the covariance of log-prob and advantage, and most of that is in few tokens:
#
#     c_t = (log p_t - mean of log p) (A_t - mean of A)
#
# Means, and the share of tokens that are chosen, are over the response tokens of a whole update, all its micro batches
# and ranks together. p is the old policy, whose log-probs are known before the update; the paper takes the present one,
# which is the same in a step's first update. How rows are spread has no say, padding neither, and nothing is drawn at
# random.

PPO = ClippedRatio()
AllReduceSum = Callable[[Sequence[float]], list[float]]
"""Sums over the data-parallel ranks."""


@dataclass(frozen=True)
class CovarianceChoice:
    """Rule that chooses tokens of an update: a share of all n of them, k = max(1, floor(ratio n)), with a covariance
    between two bounds. Of m such tokens in the order of c, the k greatest; with `is_spread` those at places floor((i +
    1/2) m / k), i = 0 .. k - 1. All, if they are fewer than k."""

    ratio: float
    lowest: float = -math.inf
    highest: float = math.inf
    is_spread: bool = False

    def find(
        self,
        batch: TrainBatch,
        updates: Sequence[np.ndarray],
        all_reduce_sum: AllReduceSum,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> np.ndarray:
        """bool [N], of the tokens of this rank. `updates` holds the rows of each update that this one of the
        data-parallel ranks has. Collective. Tokens of equal covariance are told apart by attempt, turn and place.

        Raises ValueError without old log-probs.
        """
        if batch.old_log_probs is None:
            raise ValueError("tokens are chosen by their covariance before the update, which needs old_log_probs")
        chosen = np.zeros(batch.samples.num_tokens, bool)
        row_of = np.repeat(np.arange(len(batch)), batch.samples.lengths)
        tokens = [np.flatnonzero(batch.samples.response_mask & np.isin(row_of, rows)) for rows in updates]
        log_probs, advantages = batch.old_log_probs.astype(np.float64), batch.advantages.astype(np.float64)
        sums = [x for at in tokens for x in (len(at), math.fsum(log_probs[at]), math.fsum(advantages[at]))]
        counts, *means = np.array(all_reduce_sum(sums)).reshape(-1, 3).T
        log_prob, advantage = (mean / np.maximum(counts, 1) for mean in means)
        near = [(log_probs[at] - log_prob[u]) * (advantages[at] - advantage[u]) for u, at in enumerate(tokens)]
        shares = [max(int(self.ratio * count), 1) for count in counts]

        mine = [self._candidates(batch, row_of, *each) for each in zip(tokens, near, shares, strict=True)]
        everyone = _gathered([table for _, table in mine], all_reduce_sum, rank, num_ranks)
        for (at, _), (table, first), share in zip(mine, everyone, shares, strict=True):
            places = self._places(np.lexsort(table.T), share) - first
            chosen[at[places[(places >= 0) & (places < len(at))]]] = True
        return chosen

    def _candidates(
        self, batch: TrainBatch, row_of: np.ndarray, tokens: np.ndarray, covariances: np.ndarray, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of this rank that may be chosen, and [place, turn, attempt, covariance] for each."""
        starts = np.cumsum(batch.samples.lengths) - batch.samples.lengths
        within = (covariances > self.lowest) & (covariances < self.highest)
        tokens, covariances = tokens[within], covariances[within]
        rows = row_of[tokens]
        keys = (tokens - starts[rows], batch.samples.turns[rows], batch.samples.trajectory_ids[rows], covariances)
        order = np.lexsort(keys)
        if not self.is_spread:
            order = order[-share:]  # more than these can be chosen on no rank
        return tokens[order], np.stack(keys, axis=1).astype(np.float64)[order]

    def _places(self, ordered: np.ndarray, share: int) -> np.ndarray:
        count = min(share, len(ordered))
        if not self.is_spread:
            return ordered[len(ordered) - count :]
        return ordered[(2 * np.arange(count) + 1) * len(ordered) // max(2 * count, 1)]


def _gathered(
    tables: Sequence[np.ndarray], all_reduce_sum: AllReduceSum, rank: int, num_ranks: int
) -> list[tuple[np.ndarray, int]]:
    """Returns the rows of all ranks' tables of each update, rank after rank, and where this rank's begin."""
    sizes = np.zeros((num_ranks, len(tables)))
    sizes[rank] = [len(table) for table in tables]
    sizes = np.array(all_reduce_sum(sizes.ravel().tolist())).reshape(sizes.shape).round().astype(np.int64)
    firsts, totals = np.cumsum(sizes, axis=0) - sizes, sizes.sum(axis=0)
    every = [np.zeros((total, 4)) for total in totals]
    for update, (of_all, table) in enumerate(zip(every, tables, strict=True)):
        of_all[firsts[rank, update] :][: len(table)] = table
    flat = np.array(all_reduce_sum(np.concatenate(every).ravel().tolist())).reshape(-1, 4)
    return list(zip(np.split(flat, np.cumsum(totals)[:-1]), firsts[rank].tolist(), strict=True))


@dataclass(frozen=True)
class ClippedCovariance:
    """PPO's clipped ratio, but 0 for a share of the tokens, at least one, of those whose covariance is between two
    bounds. The paper draws them at random; here they are spread evenly over those there are, in the order of their
    covariance. Tokens that the clip binds may be among them: these do not learn either way."""

    ratio: float = 2e-4
    lowest: float = 1.0
    highest: float = 5.0
    clipped: ClippedRatio = PPO

    @property
    def choice(self) -> CovarianceChoice:
        return CovarianceChoice(self.ratio, self.lowest, self.highest, is_spread=True)

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        return self.clipped(tokens, metrics).masked_fill(_chosen(tokens, metrics), 0.0)


@dataclass(frozen=True)
class PenalizedCovariance:
    """-r A, and coef * |log r| on top for the share of tokens, at least one, whose covariance is greatest."""

    ratio: float = 2e-4
    coef: float = 1.0

    @property
    def choice(self) -> CovarianceChoice:
        return CovarianceChoice(self.ratio)

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        penalty = torch.where(_chosen(tokens, metrics), self.coef * tokens.log_ratio.abs(), 0.0)
        return penalty - ratio_of(tokens.log_ratio) * tokens.advantages


def _chosen(tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
    """True where a response token was chosen before the update. [B, T]"""
    if tokens.chosen is None:
        raise ValueError("this objective needs tokens that were chosen by their covariance (CovarianceChoice)")
    chosen = tokens.chosen & tokens.mask
    metrics.add("covariance_fraction", chosen.sum(), tokens.mask.sum())
    return chosen


# --- from the keys of a YAML, in the order of roll/configs/tables/policy_losses.py


def clip_cov(
    pg_clip: float,
    use_pg_clip_range: bool,
    pg_clip_low: float,
    pg_clip_high: float,
    clip_cov_ratio: float,
    clip_cov_lb: float,
    clip_cov_ub: float,
) -> ClippedCovariance:
    clipped = ClippedRatio(*clip_range(pg_clip, use_pg_clip_range, pg_clip_low, pg_clip_high))
    return ClippedCovariance(clip_cov_ratio, clip_cov_lb, clip_cov_ub, clipped)


# Policy gradients that a gate on the ratio of new to old policy switches off, token by token.


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
        detached = tokens.log_ratio.detach()
        count_clipped(metrics, tokens.mask & (detached < -bound), tokens.mask & (detached > bound), tokens.mask)
        return -tokens.advantages * tokens.log_ratio.clamp(-bound, bound)
