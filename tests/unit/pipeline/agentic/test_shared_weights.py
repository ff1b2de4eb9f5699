"""The loss of an attempt that was cut into rows is that of the same attempt in one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from roll.algorithms.loss import Aggregation
from roll.pipeline.agentic.agentic_pipeline import shared_weights
from roll.types.batch import LossScale, RowMeta

LOSSES = [[0.5, -1.0, 2.0, 0.25], [1.5, 3.0], [-2.0]]
CUT = [[0.5, -1.0, 2.0], [0.25], [1.5], [3.0], [-2.0]]


def meta(rows: list[list[float]], attempts: list[int]) -> RowMeta:
    lengths = np.array([len(row) for row in rows], np.int64)
    count = len(rows)
    return RowMeta(
        lengths=lengths.astype(np.int32),
        response_lengths=lengths,
        rewards=np.zeros(count, np.float32),
        group_ids=np.zeros(count, np.int64),
        trajectory_ids=np.array(attempts, np.int64),
        turns=np.zeros(count, np.int32),
        domains=np.full(count, "Tools"),
        finish_reasons=np.zeros(count, np.int8),
    )


def loss(rows: list[list[float]], weights: np.ndarray | None, mode: Any) -> float:
    longest = max(map(len, rows))
    values = torch.tensor([row + [0.0] * (longest - len(row)) for row in rows], dtype=torch.float64)
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    aggregation = Aggregation(mode, 7.0 if mode.endswith("norm") else None)
    scale = LossScale(num_tokens=int(mask.sum()), num_samples=len(rows))
    total = aggregation.total(values, mask, None if weights is None else torch.tensor(weights, dtype=torch.float64))
    return float(total) / aggregation.denominator(scale)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_a_cut_attempt_has_the_loss_of_the_uncut_one(mode: str) -> None:
    cut = meta(CUT, [0, 0, 1, 1, 2])
    weights = shared_weights(cut, np.ones(5, bool), mode)
    assert loss(CUT, weights, mode) == pytest.approx(loss(LOSSES, None, mode), abs=1e-6)  # weights are float32


def test_rows_of_other_environments_stand_for_themselves() -> None:
    cut = meta(CUT, [0, 0, 1, 1, 2])
    weights = shared_weights(cut, np.array([True, True, False, False, False]), "seq-mean-token-mean")
    assert weights == pytest.approx(np.array([0.75, 0.25, 1, 1, 1]) * 5 / 4)
    assert shared_weights(cut, np.zeros(5, bool), "seq-mean-token-mean").tolist() == [1.0] * 5
