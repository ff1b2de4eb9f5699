"""A few numbers that stand for each row of a step: equal ones mean that two runs trained on the same."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np

from roll.types.batch import Rows, SampleBatch, TrainBatch, rows_of
from roll.types.media import pictures_of

ROW_STAGES = (
    "prompt ids",
    "sampled tokens",
    "rewards",
    "log-probs of the engine",
    "log-probs of the trainer",
    "log-probs of the reference",
    "advantages",
)
"""The columns of `row_numbers` but for the last, in the order in which a step computes them."""


def row_numbers(batch: Rows | TrainBatch) -> np.ndarray:
    """Return float64 [R, 8]: the columns of ROW_STAGES and the number of response tokens. Token ids are a CRC-32,
    for prompts of their pictures, too; log-probs and advantages are sums over the response; what a batch does not have
    is 0."""
    rows = rows_of(batch)
    numbers = np.zeros((len(rows), len(ROW_STAGES) + 1))
    bounds = np.append(0, np.cumsum(rows.lengths)).tolist()
    for row, (start, end) in enumerate(pairwise(bounds)):
        ids, mask = rows.input_ids[start:end], rows.response_mask[start:end]
        prompt = zlib.crc32(ids[~mask].tobytes())
        for picture in pictures_of(rows.media[row : row + 1] if rows.media else None):
            prompt = zlib.crc32(picture.digest.encode(), prompt)
        numbers[row, :2] = prompt, zlib.crc32(ids[mask].tobytes())
    numbers[:, -1] = rows.response_lengths
    if isinstance(rows, SampleBatch):
        numbers[:, 2] = rows.rewards
    if isinstance(batch, TrainBatch) and len(rows):
        scores = (batch.samples.rollout_log_probs, batch.old_log_probs, batch.ref_log_probs, batch.advantages)
        for column, values in enumerate(scores, 3):
            if values is not None:
                numbers[:, column] = np.add.reduceat(values.astype(np.float64), bounds[:-1])
    return numbers


def repetitions(numbers: np.ndarray, group_ids: np.ndarray, turns: np.ndarray) -> dict[str, float]:
    """Metrics of rows that repeat others. `numbers`: [R, 8] of `row_numbers`; `group_ids`, `turns`: int [R]. Where
    attempts have a row per turn, equal rows are paid for what came after them, so their rewards are not compared."""
    is_trained = numbers[:, -1] > 0
    numbers, group_ids = numbers[is_trained], group_ids[is_trained]
    _, groups, members = np.unique(numbers[:, :2], axis=0, return_inverse=True, return_counts=True)
    metrics = {"duplicate_responses_fraction": 1.0 - len(members) / max(1, len(numbers))}
    prompts, ids = len(np.unique(numbers[:, 0])), len(np.unique(group_ids))
    metrics["repeated_prompts_fraction"] = max(0.0, 1.0 - prompts / max(1, ids))
    repeated = members[groups] > 1
    rewards, groups = numbers[repeated, 2], groups[repeated]
    if len(rewards) and not turns.any() and np.isfinite(rewards).all():
        sums, squares = np.bincount(groups, rewards), np.bincount(groups, rewards**2)
        counts = np.bincount(groups)
        counts, sums, squares = counts[counts > 0], sums[counts > 0], squares[counts > 0]
        variance = np.maximum(0.0, squares - sums**2 / counts) / (counts - 1)
        metrics["duplicate_reward_std_mean"] = float(np.sqrt(variance).mean())
    return metrics
