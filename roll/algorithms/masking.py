"""Choice of the rows that are trained on, and their weights. Works on row metadata, on the driver."""

from dataclasses import dataclass

import numpy as np

from roll.algorithms.normalize import moments_by_key
from roll.types.batch import FINISH_REASONS, RowMeta, Rows, TrainBatch
from roll.types.columns import sum_rows
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class RowWeightSettings:
    """`max_len_mask` drops rows cut at the length limit. `difficulty_mask` drops groups whose mean reward is not
    strictly between the thresholds. `error_max_len_clip` drops unrewarded rows (reward <= 0) of
    `error_max_len_threshold` tokens or more. The loss weights favour short responses (1.5 for the shortest, .5 for the
    longest) and hard tasks (2 for the hardest, .5 for the easiest), scaled so that their mean over the trained rows is
    1."""

    max_len_mask: bool = False
    difficulty_mask: bool = False
    difficulty_low_threshold: float = 0.0
    difficulty_high_threshold: float = 1.0
    error_max_len_clip: bool = False
    error_max_len_threshold: int = 9999999999
    length_loss_weight: bool = False
    difficulty_loss_weight: bool = False


def row_weights(meta: RowMeta, settings: RowWeightSettings) -> tuple[np.ndarray, dict[str, float]]:
    """The loss weight of every row, 0 where it is not trained on. float32 [R], and metrics.

    Dropped rows still count in the means of their group. Failed attempts (NaN) and rows without a response weigh 0. A
    group of one attempt says nothing about difficulty and is kept. Where the data do not say how hard a task is, from 0
    to 1, it is as hard as its group fails: 1 - mean reward.
    """
    rewards = np.asarray(meta.rewards, np.float64)
    group = moments_by_key(rewards, meta.group_ids)
    present = ~np.isnan(rewards) & (meta.response_lengths > 0)

    drops: dict[str, np.ndarray] = {}
    if settings.max_len_mask:
        drops["max_len"] = meta.finish_reasons == FINISH_REASONS.index("length")
    if settings.difficulty_mask:
        useful = (group.mean > settings.difficulty_low_threshold) & (group.mean < settings.difficulty_high_threshold)
        drops["difficulty"] = (group.count > 1) & ~useful
    if settings.error_max_len_clip:
        drops["error_max_len"] = (rewards <= 0) & (meta.response_lengths >= settings.error_max_len_threshold)
    trained = present.copy()
    for dropped in drops.values():
        trained &= ~dropped

    weights = trained.astype(np.float64)
    if settings.length_loss_weight and trained.any():
        lengths = meta.response_lengths.astype(np.float64)
        shortest, longest = lengths[trained].min(), lengths[trained].max()
        weights *= 1.5 - (lengths - shortest) / max(longest - shortest, 1.0)
    if settings.difficulty_loss_weight:
        hardness = 1 - group.mean
        if meta.difficulty is not None:
            hardness = np.where(np.isnan(meta.difficulty), hardness, meta.difficulty)
        weights *= 0.5 + 1.5 * np.clip(hardness, 0.0, 1.0)
    if weights.any():
        weights *= trained.sum() / weights.sum()

    num_present = max(int(present.sum()), 1)
    metrics = {f"dropped_{name}_fraction": float((drop & present).sum() / num_present) for name, drop in drops.items()}
    metrics["trained_rows_fraction"] = float(trained.sum() / max(len(meta), 1))
    return weights.astype(np.float32), metrics


# Rows that cannot move the gradient of a policy loss.


@dataclass(frozen=True)
class ZeroGradientRows:
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

    def metrics(self, rows: Rows, left_out: np.ndarray, epochs: int) -> MetricSums:
        """Add what the loss would report for the rows left out if it saw them in every epoch: 0, with their share of
        the denominator. Also count them as a fraction of the rows with a response."""
        lengths, sums = rows.response_lengths, MetricSums()
        has_response = lengths > 0
        share = lengths[left_out].sum() if self.counts_tokens else (left_out & has_response).sum()
        sums.add("pg_loss", 0.0, float(epochs * share))
        sums.add("skipped_fraction", float((left_out & has_response).sum()), float(has_response.sum()))
        return sums
