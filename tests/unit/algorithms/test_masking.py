"""Masks, weights and norms."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.masking import RowWeightSettings, row_weights
from roll.algorithms.normalize import RunningMoments, moments_by_key, whiten
from roll.types.batch import FINISH_REASONS, RowMeta
from tests.unit.algorithms.rows import alone

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


def test_masks_drop_what_they_name_and_combine() -> None:
    weights, metrics = row_weights(meta([1, 0, NAN, 1], [0, 0, 0, 0], [3, 5, 4, 0]), RowWeightSettings())
    assert weights.tolist() == [1, 1, 0, 0]
    assert weights.dtype == np.float32
    assert metrics == {"trained_rows_fraction": 0.5}
    rows = meta([1, 0, 1], [0, 0, 0], [8, 8, 3], ["length", "stop", "stop"])
    weights, metrics = row_weights(rows, RowWeightSettings(max_len_mask=True))
    assert weights.tolist() == [0, 1, 1]
    assert metrics["dropped_max_len_fraction"] == pytest.approx(1 / 3)
    rows = meta([1, 1, 0, 0, 1, 0, 1, NAN], [0, 0, 1, 1, 2, 2, 3, 3])
    weights, metrics = row_weights(rows, RowWeightSettings(difficulty_mask=True))
    assert weights.tolist() == [0, 0, 0, 0, 1, 1, 1, 0]  # group 3 has one attempt: no measure of difficulty
    assert metrics["dropped_difficulty_fraction"] == pytest.approx(4 / 7)
    narrow = RowWeightSettings(difficulty_mask=True, difficulty_low_threshold=0.5)
    assert row_weights(rows, narrow)[0].tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    rows = meta([0, 0, 1, 0.5, -1], [0] * 5, [9, 10, 10, 10, 11])
    weights, _ = row_weights(rows, RowWeightSettings(error_max_len_clip=True, error_max_len_threshold=10))
    assert weights.tolist() == [1, 0, 1, 1, 0]
    rows = meta([1, 1], [0, 0], reasons=["length", "stop"])
    weights, metrics = row_weights(
        rows, RowWeightSettings(max_len_mask=True, difficulty_mask=True, length_loss_weight=True)
    )
    assert weights.tolist() == [0, 0]
    assert metrics["trained_rows_fraction"] == 0
    weights, _ = row_weights(
        meta([], []), RowWeightSettings(True, True, error_max_len_clip=True, length_loss_weight=True)
    )
    assert len(weights) == 0


def test_weights_favour_short_responses_and_hard_tasks_and_average_one() -> None:
    rows = meta([1, 0, 1, NAN], [0] * 4, [2, 6, 4, 100])
    weights, _ = row_weights(rows, RowWeightSettings(length_loss_weight=True))
    assert weights.tolist() == [1.5, 0.5, 1.0, 0.0]
    equal, _ = row_weights(meta([1, 0], [0, 0], [5, 5]), RowWeightSettings(length_loss_weight=True))
    assert equal.tolist() == [1, 1]
    rows = meta([1, 1, 0, 0], [0, 0, 1, 1])
    weights, _ = row_weights(rows, RowWeightSettings(difficulty_loss_weight=True))
    assert weights.tolist() == pytest.approx([0.4, 0.4, 1.6, 1.6])  # .5 and 2, scaled by 4 / 5
    for told, want in (([1.0, 1, 0, 0], [1.6, 1.6, 0.4, 0.4]), ([1.0, 1, 0, NAN], np.array([2, 2, 0.5, 2]) * 4 / 6.5)):
        given, _ = row_weights(replace(rows, difficulty=np.array(told)), RowWeightSettings(difficulty_loss_weight=True))
        assert given.tolist() == pytest.approx(want)


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-100, 100), max_size=5), max_size=6))
def test_running_moments_are_those_of_all_values_together(parts: list[list[float]]) -> None:
    moments = RunningMoments()
    for part in parts:
        moments = moments.update(np.array([*part, float("nan")]))
    together = np.array([x for part in parts for x in part])
    assert moments.count == len(together)
    assert moments.mean == pytest.approx(together.mean() if len(together) else 0.0, abs=1e-9)
    assert moments.std == pytest.approx(together.std(ddof=1) if len(together) > 1 else 0.0, abs=1e-6)


def test_moments_come_by_key_and_go_on_from_three_numbers() -> None:
    moments = RunningMoments().update(np.array([1.0, 2.0])).update(np.array([6.0]))
    assert (moments.mean, moments.std) == (3.0, pytest.approx(7**0.5))
    assert RunningMoments(**asdict(moments)) == moments
    moments = moments_by_key(np.array([1, 0, 5, np.nan]), np.array(["a", "a", "b", "b"]))
    assert moments.count.tolist() == [2, 2, 1, 1]
    assert moments.mean.tolist() == [0.5, 0.5, 5, 5]
    assert moments.std.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0, 0])


def test_whitened_values_have_mean_zero_and_deviation_one() -> None:
    values = np.random.default_rng(0).normal(3, 5, 1000)
    white = whiten(values, alone)
    assert white.mean() == pytest.approx(0, abs=1e-12)
    assert white.std(ddof=1) == pytest.approx(1, abs=1e-6)
    white = whiten(np.array([0.0, 0.0, 3.0]), alone, center=False)
    assert white[:2].tolist() == [0, 0]
    assert white.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert whiten(np.array([]), alone).tolist() == []
    assert whiten(np.array([4.0]), alone).tolist() == [0.0]
    assert np.abs(whiten(np.full(9, 0.1), alone)).max() < 1e-6
