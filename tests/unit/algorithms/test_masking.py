from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roll.algorithms.masking import RowWeightSettings, row_weights
from roll.types.batch import FINISH_REASONS, RowMeta

NAN = float("nan")


def meta(
    rewards: list[float], groups: list[int], lengths: list[int] | None = None, reasons: list[str] | None = None
) -> RowMeta:
    rows = len(rewards)
    response_lengths = np.array(lengths or [4] * rows, np.int64)
    return RowMeta(
        lengths=(response_lengths + 2).astype(np.int32),
        response_lengths=response_lengths,
        rewards=np.array(rewards, np.float32),
        group_ids=np.array(groups, np.int64),
        trajectory_ids=np.arange(rows, dtype=np.int64),
        turns=np.zeros(rows, np.int32),
        domains=np.full(rows, "math"),
        finish_reasons=np.array([FINISH_REASONS.index(r) for r in reasons or ["stop"] * rows], np.int8),
    )


def test_without_masks_every_row_that_can_be_trained_on_weighs_one() -> None:
    weights, metrics = row_weights(meta([1, 0, NAN, 1], [0, 0, 0, 0], [3, 5, 4, 0]), RowWeightSettings())
    assert weights.tolist() == [1, 1, 0, 0]
    assert weights.dtype == np.float32
    assert metrics == {"trained_rows_fraction": 0.5}


def test_max_len_mask_drops_truncated_rows_only() -> None:
    rows = meta([1, 0, 1], [0, 0, 0], [8, 8, 3], ["length", "stop", "stop"])
    weights, metrics = row_weights(rows, RowWeightSettings(max_len_mask=True))
    assert weights.tolist() == [0, 1, 1]
    assert metrics["dropped_max_len_fraction"] == pytest.approx(1 / 3)


def test_difficulty_mask_drops_groups_at_or_beyond_the_thresholds() -> None:
    rows = meta([1, 1, 0, 0, 1, 0, 1, NAN], [0, 0, 1, 1, 2, 2, 3, 3])
    weights, metrics = row_weights(rows, RowWeightSettings(difficulty_mask=True))
    assert weights.tolist() == [0, 0, 0, 0, 1, 1, 1, 0]  # group 3 has one attempt: no measure of difficulty
    assert metrics["dropped_difficulty_fraction"] == pytest.approx(4 / 7)
    narrow = RowWeightSettings(difficulty_mask=True, difficulty_low_threshold=0.5)
    assert row_weights(rows, narrow)[0].tolist() == [0, 0, 0, 0, 0, 0, 1, 0]


def test_error_max_len_clip_drops_long_wrong_answers() -> None:
    rows = meta([0, 0, 1, 0.5, -1], [0] * 5, [9, 10, 10, 10, 11])
    weights, _ = row_weights(rows, RowWeightSettings(error_max_len_clip=True, error_max_len_threshold=10))
    assert weights.tolist() == [1, 0, 1, 1, 0]


def test_masks_combine_and_may_drop_everything() -> None:
    rows = meta([1, 1], [0, 0], reasons=["length", "stop"])
    weights, metrics = row_weights(
        rows, RowWeightSettings(max_len_mask=True, difficulty_mask=True, length_loss_weight=True)
    )
    assert weights.tolist() == [0, 0]
    assert metrics["trained_rows_fraction"] == 0


def test_length_weights_favour_short_responses_and_average_one() -> None:
    rows = meta([1, 0, 1, NAN], [0] * 4, [2, 6, 4, 100])
    weights, _ = row_weights(rows, RowWeightSettings(length_loss_weight=True))
    assert weights.tolist() == [1.5, 0.5, 1.0, 0.0]
    equal, _ = row_weights(meta([1, 0], [0, 0], [5, 5]), RowWeightSettings(length_loss_weight=True))
    assert equal.tolist() == [1, 1]


def test_difficulty_weights_favour_hard_tasks_and_average_one() -> None:
    rows = meta([1, 1, 0, 0], [0, 0, 1, 1])
    weights, _ = row_weights(rows, RowWeightSettings(difficulty_loss_weight=True))
    assert weights.tolist() == pytest.approx([0.4, 0.4, 1.6, 1.6])  # .5 and 2, scaled by 4 / 5
    for told, want in (([1.0, 1, 0, 0], [1.6, 1.6, 0.4, 0.4]), ([1.0, 1, 0, NAN], np.array([2, 2, 0.5, 2]) * 4 / 6.5)):
        given, _ = row_weights(replace(rows, difficulty=np.array(told)), RowWeightSettings(difficulty_loss_weight=True))
        assert given.tolist() == pytest.approx(want)


def test_no_rows_are_fine() -> None:
    weights, _ = row_weights(
        meta([], []), RowWeightSettings(True, True, error_max_len_clip=True, length_loss_weight=True)
    )
    assert len(weights) == 0
