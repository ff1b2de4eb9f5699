"""Rows that cannot move the gradient of a policy loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roll.types.batch import Rows, TrainBatch
from roll.types.metrics import MetricSums
from roll.types.ragged import sum_rows


@dataclass(frozen=True)
class IdleRows:
    """Finds the rows that a loss cannot learn from. The loss must be exactly 0 on every token whose advantage is 0, and
    have no other term. A row is idle if all its response tokens have advantage 0, if it has none, or if its weight in
    the loss is 0. In a group with equal rewards all rows are idle (GRPO, RLOO).

    What an idle row adds to the loss and to its gradient is 0, so its forward and backward pass may be left out. It
    still counts in the denominators of the loss.
    """

    counts_tokens: bool = False
    """The loss is divided by the number of tokens, not of rows."""

    def find(self, batch: TrainBatch) -> np.ndarray:
        """bool [R]."""
        rows = batch.samples
        moved = sum_rows((rows.response_mask & (batch.advantages != 0)).astype(np.int64), rows.lengths)
        return (moved == 0) | (rows.loss_weights == 0)

    def told(self, rows: Rows, left_out: np.ndarray, epochs: int) -> MetricSums:
        """What the loss would say of the rows left out if it saw them in every epoch: 0, with their share of the
        denominator; and how many they are of those with a response."""
        lengths, sums = rows.response_lengths, MetricSums()
        has_response = lengths > 0
        share = lengths[left_out].sum() if self.counts_tokens else (left_out & has_response).sum()
        sums.add("pg_loss", 0.0, float(epochs * share))
        sums.add("skipped_fraction", float((left_out & has_response).sum()), float(has_response.sum()))
        return sums
