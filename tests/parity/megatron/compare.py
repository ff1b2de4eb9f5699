"""When two training runs count as the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import RankPool
from tests.parity import compare
from tests.parity.compare import PARAMETER_TOLERANCE, largest_difference
from tests.parity.megatron import ranks
from tests.parity.strategies.reference import Trace

__all__ = ["PARAMETER_TOLERANCE", "assert_goes_on", "assert_same_training", "largest_difference"]

GRADIENT_TOLERANCE = 2e-6  # of sums over more ranks than those of the other trainers


def assert_same_training(got: Trace, want: Trace) -> None:
    """Gradients where the run has whole ones."""
    compare.assert_same_training(got, want, gradient_tolerance=GRADIENT_TOLERANCE, has_gradients=bool(got.gradients))


def assert_goes_on(
    rank_pool: Callable[[int], RankPool],
    directory: Path,
    before: tuple[int, ranks.Run],
    after: tuple[int, ranks.Run],
    updates: int = 2,
) -> ranks.Weights:
    """Some updates of a run on so many ranks, a checkpoint, a load by another one, an update: the weights are those at
    the checkpoint bit for bit, and then those of the unbroken run; under another layout but for the order of sums.
    Returns the weights at the checkpoint."""
    saved, unbroken, norm = rank_pool(before[0]).run(ranks.save_and_go_on, before[1], directory, updates)[0]
    loaded, resumed, other_norm = rank_pool(after[0]).run(ranks.load_and_go_on, after[1], directory)[0]
    assert largest_difference(saved, loaded) == 0
    assert largest_difference(unbroken, resumed) <= (0.0 if before == after else PARAMETER_TOLERANCE)
    assert other_norm == (norm if before == after else pytest.approx(norm, rel=1e-4))
    return saved
