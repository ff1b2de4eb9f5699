"""When two training runs count as the same."""

from tests.parity import compare
from tests.parity.compare import PARAMETER_TOLERANCE, largest_difference
from tests.parity.strategies.reference import Trace

__all__ = ["PARAMETER_TOLERANCE", "assert_same_training", "largest_difference"]

GRADIENT_TOLERANCE = 2e-6  # of sums over more ranks than those of the other trainers


def assert_same_training(got: Trace, want: Trace) -> None:
    """Gradients where the run has whole ones."""
    compare.assert_same_training(got, want, gradient_tolerance=GRADIENT_TOLERANCE, has_gradients=bool(got.gradients))
