"""Baselines of single tokens: the mean return of a group at each place, weighted by how much the gradients of its rows
vary up to there (optimal token baseline, as verl has it)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roll.algorithms.normalize import AllReduceSum
from roll.types.packing import ranges

_AT_ONCE = 1 << 16  # numbers of one exchange between ranks, which travel as Python's
_TINY = 1e-8
_ROUNDING = 1e-12  # of sums in float64: equal returns leave exactly 0


@dataclass(frozen=True)
class TokenGroups:
    """Places of the response tokens of all groups in one list: a group has as many as its longest row has tokens.

    - starts: the first place of each row's group, by row id
    - size: number of all places
    """

    starts: np.ndarray
    size: int

    @classmethod
    def of_rows(cls, group_ids: np.ndarray, lengths: np.ndarray) -> TokenGroups:
        """Lay out the places of groups by the response lengths of their rows. [rows] each.

        Example: rows of groups 7, 7, 9 with 2, 3, 1 tokens have starts 0, 0, 3 in 4 places.
        """
        _, index = np.unique(group_ids, return_inverse=True)
        longest = np.zeros(index.max(initial=-1) + 1, np.int64)
        np.maximum.at(longest, index, lengths)
        return cls((np.cumsum(longest) - longest)[index], int(longest.sum()))

    def of(self, rows: np.ndarray) -> TokenGroups:
        """Return the places of these rows, in this order; a padding row beyond the end has no tokens to place."""
        known = np.minimum(rows, max(len(self.starts) - 1, 0))
        return replace(self, starts=self.starts[known] if len(self.starts) else np.zeros(len(rows), np.int64))

    def places(self, lengths: np.ndarray) -> np.ndarray:
        """Return the place of each token of rows with so many tokens, flat."""
        return ranges(self.starts, lengths)


def path_variances(log_probs: np.ndarray, halved: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Compute W_t, the sum over the tokens of a row up to t of 1 - 2 p + S: the squared norm of the gradient of log p
    by the logits. S is the sum of squared probabilities of the vocabulary. Flat over response tokens, float64.

    `halved` are log-probs at half the temperature T, which hold S: with L(T) = log of the sum of exp(logit / T), the
    log-prob at T is x - L(T), at T / 2 it is 2 x - L(T / 2), and S = exp(L(T / 2) - 2 L(T)).
    """
    own, half = log_probs.astype(np.float64), halved.astype(np.float64)
    squares = np.exp(np.minimum(2 * own - half, 0.0))  # rounding can lift a sum of 1 above it
    sums = np.cumsum(np.maximum(1 - 2 * np.exp(own) + squares, 0.0))
    starts = np.cumsum(lengths) - lengths
    before = np.concatenate([[0.0], sums])[starts]
    return sums - np.repeat(before, lengths)


def less_baselines(
    returns: np.ndarray, weights: np.ndarray, places: np.ndarray, size: int, all_reduce_sum: AllReduceSum
) -> np.ndarray:
    """Compute G less sum of W G / sum of W over the tokens at the same place of `size` (`TokenGroups`); G where one
    alone is there. Where all are certain (W is 0), their plain mean. Collective: rows of a group may be on several
    ranks.

    Example: places [0 1] and [0] with W [1 2] and [3], returns 1 and 0: at the first the baseline is (1 x 1 + 3 x 0) /
    4, at the second 0.
    """
    weights = weights + _TINY
    columns = (weights * returns, weights, np.ones(len(returns)))
    local = np.stack([np.bincount(places, column, size) for column in columns])
    total = np.zeros_like(local)
    for start in range(0, size, _AT_ONCE):
        part = local[:, start : start + _AT_ONCE]
        total[:, start : start + _AT_ONCE] = np.reshape(all_reduce_sum(part.reshape(-1).tolist()), part.shape)
    weighted, weight, count = total[:, places]
    gaps = returns - np.where(count > 1.5, weighted / np.maximum(weight, _TINY), 0.0)
    return np.where(np.abs(gaps) <= _ROUNDING * np.abs(returns), 0.0, gaps)
