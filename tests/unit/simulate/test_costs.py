"""Costs: the arithmetic of a decode step."""

import pytest

from roll.simulate.setup import Costs


def test_steps_are_straight_between_points_and_beyond_the_last_two() -> None:
    costs = Costs(decode_s=((1, 0.01), (3, 0.02), (5, 0.06)))
    assert [costs.decode_step_s(n) for n in (1, 2, 3, 4, 6)] == pytest.approx([0.01, 0.015, 0.02, 0.04, 0.08])
    assert Costs(decode_s=((2, 0.01),)).decode_step_s(9) == 0.01
