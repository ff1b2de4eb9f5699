"""What means do not tell of a step: against counts by hand."""

import numpy as np
import pytest

from roll.rl.records.recorder import QUANTILES, distributions, spread_of
from tests.unit.rl.rollouts.test_filtered_step import group


def test_a_spread_has_quantiles_and_a_histogram() -> None:
    values = np.array([0.0, 0.0, 0.0, 1.0])
    found = spread_of(values)
    assert found is not None
    assert found["counts"] == [3.0, *[0.0] * 18, 1.0]
    assert found["edges"] == pytest.approx([number / 20 for number in range(21)])
    assert dict(zip(QUANTILES, found["quantiles"], strict=True)) == pytest.approx(
        {0.0: 0, 0.05: 0, 0.25: 0, 0.5: 0, 0.75: 0.25, 0.95: 0.85, 1.0: 1}
    )
    assert spread_of(np.array([])) is None


def test_failed_attempts_count_by_their_causes_and_have_no_reward() -> None:
    found = distributions([group(0, 1.0, 0.5, failed=1), group(1, 0.0, 0.0), group(2, 1.0, 1.0, failed=2)])
    assert found["num_attempts"] == 6
    assert found["failures"] == [{"cause": "crash", "count": 3, "first": "0"}]
    assert sum(found["rewards"]["counts"]) == sum(found["response_lengths"]["counts"]) == 3
    assert found["rewards"]["quantiles"][0] == 0.0 and found["rewards"]["quantiles"][-1] == 0.5
    assert found["response_lengths"]["quantiles"] == [2.0] * 7


def test_where_everything_failed_there_is_no_spread() -> None:
    assert distributions([group(0, 1.0, failed=1)])["rewards"] is None
