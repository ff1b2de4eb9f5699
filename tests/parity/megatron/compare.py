"""When two training runs count as the same."""

import numpy as np
import pytest

from tests.parity.strategies.reference import Trace

# Gradients are sums of a few hundred fp32 terms of size up to 1 in another order.
GRADIENT_TOLERANCE = 2e-6
# AdamW divides by the root of the squared gradient, so a gradient near 0 may turn a rounding error into a share of the
# step (1e-3); three steps stay within 2 % of one.
PARAMETER_TOLERANCE = 2e-5


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def assert_same_training(got: Trace, want: Trace) -> None:
    """Gradients (where the run has whole ones), parameters and metrics of every update."""
    if got.gradients:
        assert largest_difference(got.gradients, want.gradients) < GRADIENT_TOLERANCE
    for got_parameters, want_parameters in zip(got.parameters, want.parameters, strict=True):
        assert largest_difference(got_parameters, want_parameters) < PARAMETER_TOLERANCE
    for got_metrics, want_metrics in zip(got.metrics, want.metrics, strict=True):
        assert got_metrics == pytest.approx(want_metrics, rel=1e-4)
