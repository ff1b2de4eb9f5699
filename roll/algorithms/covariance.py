"""Clip-Cov and KL-Cov (Cui et al., arXiv 2505.22617): what is done to the few tokens that take entropy from the policy.

The entropy of a softmax policy falls by the covariance of log-prob and advantage, and most of that is in few tokens:

    c_t = (log p_t - mean of log p) (A_t - mean of A)

Means, and the share of tokens that are chosen, are over the response tokens of a whole update, all its micro batches
and ranks together. p is the old policy, whose log-probs are known before the update; the paper takes the present one,
which is the same in a step's first update. How rows are spread has no say, padding neither, and nothing is drawn at
random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roll.algorithms.objectives import ClippedRatio, PolicyTokens, clip_range
from roll.algorithms.off_policy import ratio_of
from roll.types.batch import TrainBatch
from roll.types.metrics import MetricSums

PPO = ClippedRatio()
AllReduceSum = Callable[[Sequence[float]], list[float]]
"""Sums over the data-parallel ranks."""


@dataclass(frozen=True)
class CovarianceChoice:
    """Which tokens of an update are chosen: a share of all n of them, k = max(1, floor(ratio n)), with a covariance
    between two bounds. Of m such tokens in the order of c, the k greatest; with `is_spread` those at places
    floor((i + 1/2) m / k), i = 0 .. k - 1. All, if they are fewer than k."""

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

        mine = [self._candidates(batch, row_of, *own) for own in zip(tokens, near, shares, strict=True)]
        everyone = _gathered([table for _, table in mine], all_reduce_sum, rank, num_ranks)
        for (at, _), (table, first), share in zip(mine, everyone, shares, strict=True):
            places = self._places(np.lexsort(table.T), share) - first
            chosen[at[places[(places >= 0) & (places < len(at))]]] = True
        return chosen

    def _candidates(
        self, batch: TrainBatch, row_of: np.ndarray, tokens: np.ndarray, covariances: np.ndarray, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those tokens of this rank that may be chosen, and of each [place, turn, attempt, covariance]."""
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


# --- from the keys of a YAML, as roll/configs/tables/policy_losses.py names them


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
