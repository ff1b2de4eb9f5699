"""M2PO: an objective that leaves tokens out until the second moment of the update's log-ratios is small."""

from dataclasses import dataclass

import numpy as np
import torch

from roll.algorithms.objectives import AllReduceSum, PolicyTokens, count_clipped
from roll.algorithms.off_policy import ratio_of
from roll.types.batch import TrainBatch
from roll.types.metrics import MetricSums

_DIGIT_BITS, _NUM_DIGITS = 8, 4  # a float32 is searched byte by byte


@dataclass(frozen=True)
class SecondMomentChoice:
    """Rule that finds the tokens of an update that do not learn. Of those whose ratio has left 1 the way of their
    advantage (A > 0 and r > 1, or A < 0 and r < 1) the greatest (log r)^2 go, until the mean over the others is at
    most `threshold`.

    r compares with the present policy, so its log-probs are computed before each update. Micro batches and ranks have
    no say. Tokens with equal squares stay or go together.

    Example: threshold .04, squares 0, .04, .09 of three such tokens: the mean is .043, so the last one goes.
    """

    threshold: float

    def find(
        self, batch: TrainBatch, tokens: np.ndarray, log_probs: np.ndarray, all_reduce_sum: AllReduceSum
    ) -> np.ndarray:
        """bool [N], of the tokens of this rank: those left out of the update. `tokens`: places of the update's tokens
        in the batch; `log_probs`: theirs now, float32. Collective. Raises ValueError without old log-probs."""
        if batch.old_log_probs is None:
            raise ValueError("the second moment of log-ratios needs old_log_probs")
        advantages = batch.advantages[tokens]
        log_ratio = log_probs.astype(np.float64) - batch.old_log_probs[tokens]
        moved = batch.samples.response_mask[tokens] & (advantages * log_ratio > 0)
        squares = np.square(log_ratio).astype(np.float32)
        bound = self._smallest_left_out(squares[moved], all_reduce_sum)
        chosen = np.zeros(batch.samples.num_tokens, bool)
        chosen[tokens[moved & (squares >= bound)]] = True
        return chosen

    def _smallest_left_out(self, squares: np.ndarray, all_reduce_sum: AllReduceSum) -> float:
        """Return the smallest square that goes; infinity if all stay.

        The bytes of positive floats are in the order of the numbers, so the place where the mean of all smaller
        squares passes the threshold is found byte by byte: each round counts and sums the squares that share the bytes
        found so far, by their next byte.
        """
        bits, found, count, total = squares.view(np.uint32), 0, 0.0, 0.0
        for place in reversed(range(_NUM_DIGITS)):
            shift = place * _DIGIT_BITS
            alike = bits >> np.uint32(shift) >> np.uint32(_DIGIT_BITS) == found
            digits = (bits[alike] >> np.uint32(shift)) & np.uint32(255)
            sums = [np.bincount(digits, of, minlength=256) for of in (None, squares[alike].astype(np.float64))]
            counts, totals = np.array(all_reduce_sum(np.concatenate(sums).tolist())).reshape(2, 256)
            counts, totals = count + np.cumsum(counts), total + np.cumsum(totals)
            over = totals > self.threshold * counts
            if not over.any() and place == _NUM_DIGITS - 1:
                return float("inf")
            digit = int(over.argmax()) if over.any() else 255  # none is over by rounding alone: the last is
            if digit:
                count, total = counts[digit - 1], totals[digit - 1]
            found = found << _DIGIT_BITS | digit
        return float(np.uint32(found).view(np.float32))


@dataclass(frozen=True)
class SecondMomentBound:
    """M2PO (Zheng et al., arXiv 2510.01161): -r A, and 0 for the tokens that `SecondMomentChoice` leaves out of the
    update. PPO's clip drops every token beyond a fixed ratio, which of stale samples are many and telling ones; this
    drops few, the furthest. p_old is the policy that sampled in the paper, whatever its age."""

    threshold: float = 0.04

    @property
    def choice(self) -> SecondMomentChoice:
        return SecondMomentChoice(self.threshold)

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        chosen = torch.zeros_like(tokens.mask) if tokens.chosen is None else tokens.chosen & tokens.mask
        log_ratio, advantages = tokens.log_ratio.detach(), tokens.advantages
        count_clipped(metrics, chosen & (advantages < 0), chosen & (advantages > 0), tokens.mask)
        moved = tokens.mask & (advantages * log_ratio > 0)
        metrics.add("second_moment_mean", (log_ratio.square() * moved).sum(), moved.sum())
        return -ratio_of(tokens.log_ratio).masked_fill(chosen, 0.0) * advantages
