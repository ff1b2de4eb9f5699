from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.normalize import RunningMoments, moments_by_key, whiten
from tests.unit.algorithms.rows import alone


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


def test_running_moments_restore_from_three_numbers() -> None:
    moments = RunningMoments().update(np.array([1.0, 2.0])).update(np.array([6.0]))
    assert (moments.mean, moments.std) == (3.0, pytest.approx(7**0.5))
    assert RunningMoments(**asdict(moments)) == moments


def test_moments_by_key_of_the_docstring() -> None:
    moments = moments_by_key(np.array([1, 0, 5, np.nan]), np.array(["a", "a", "b", "b"]))
    assert moments.count.tolist() == [2, 2, 1, 1]
    assert moments.mean.tolist() == [0.5, 0.5, 5, 5]
    assert moments.std.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0, 0])


def test_whitened_values_have_mean_zero_and_deviation_one() -> None:
    values = np.random.default_rng(0).normal(3, 5, 1000)
    white = whiten(values, alone)
    assert white.mean() == pytest.approx(0, abs=1e-12)
    assert white.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_scaling_without_centering_keeps_zeros() -> None:
    white = whiten(np.array([0.0, 0.0, 3.0]), alone, center=False)
    assert white[:2].tolist() == [0, 0]
    assert white.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_whitening_of_none_one_and_equal_values() -> None:
    assert whiten(np.array([]), alone).tolist() == []
    assert whiten(np.array([4.0]), alone).tolist() == [0.0]
    assert np.abs(whiten(np.full(9, 0.1), alone)).max() < 1e-6
