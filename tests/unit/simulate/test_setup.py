"""Lengths by group."""

import numpy as np
import pytest

from roll.simulate.setup import LogNormal


def test_lengths_have_their_description_and_repeat() -> None:
    groups = [LogNormal(seed=1).group(number, 16).lengths for number in range(3000)]
    lengths = np.concatenate(groups)
    assert np.median(lengths) == pytest.approx(2200, rel=0.05) and lengths.mean() == pytest.approx(3280, rel=0.03)
    assert np.mean([group.max() for group in groups]) == pytest.approx(7350, rel=0.04) and lengths.max() == 16_384
    one, two, other = (LogNormal().group(number, 4).lengths for number in (5, 5, 6))
    assert (one == two).all() and (one != other).any()
