"""When two training runs count as the same."""

from __future__ import annotations

import numpy as np

from tests.parity import proof
from tests.parity.proof import Difference
from tests.parity.strategies.reference import Trace

# Gradients are sums of a few hundred fp32 terms of size up to 1 in another order: 1e-6 is ten times what was seen.
GRADIENT_TOLERANCE = 1e-6
# AdamW divides by the root of the squared gradient, so a gradient near 0 may turn a rounding error into a share of the
# step (1e-3); three steps stay within 2 % of one.
PARAMETER_TOLERANCE = 2e-5
NORM_TOLERANCE = 1e-4
LOG_PROB_TOLERANCE = 1e-5  # another order of sums, on values of about 6


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def assert_same_training(
    got: Trace,
    want: Trace,
    parameter_tolerance: float = PARAMETER_TOLERANCE,
    gradient_tolerance: float = GRADIENT_TOLERANCE,
    norm_tolerance: float = NORM_TOLERANCE,
    has_gradients: bool = True,
) -> None:
    """Gradients (where the run has whole ones), parameters and metrics of every update, and the scores of the rows that
    this rank has, before the first."""
    gradients = largest_difference(got.gradients, want.gradients) if has_gradients else None
    parameters = [largest_difference(*pair) for pair in zip(got.parameters, want.parameters, strict=True)]
    norms = relative_metrics(got, want)
    seen = proof.Differences(
        None if gradients is None else Difference(gradients, gradient_tolerance),
        Difference(max(parameters), parameter_tolerance),
        Difference(norms, norm_tolerance),
        scores(got, want, LOG_PROB_TOLERANCE),
    )
    assert_within(seen)


def relative_metrics(got: Trace, want: Trace) -> float:
    """The largest difference of gradient norm or learning rate, as a share of it."""
    shares = []
    for got_metrics, want_metrics in zip(got.metrics, want.metrics, strict=True):
        assert got_metrics.keys() == want_metrics.keys()
        shares += [abs(got_metrics[name] - value) / abs(value) for name, value in want_metrics.items()]
    return max(shares)


def scores(got: Trace, want: Trace, tolerance: float) -> Difference | None:
    """Of log-probs, or values, of the rows that this rank has."""
    assert got.scores.keys() <= want.scores.keys()
    found = [float(np.abs(scored - want.scores[row]).max()) for row, scored in got.scores.items()]
    return Difference(max(found), tolerance) if found else None


def assert_bf16_stays_near_fp32(got: Trace, want: Trace) -> None:
    """bf16 has 8 bits: a product is off by 0.4 %, a gradient through two layers by a few percent of its norm. Weights
    are fp32 masters, and what they moved is compared, as a share of how far that is."""
    shares, name = [], "model.layers.0.mlp.up_proj.weight"
    for each, gradient in want.gradients.items():
        error = np.linalg.norm(got.gradients[each] - gradient)
        shares.append(float((error - 1e-4) / np.linalg.norm(gradient)))
    moved, wanted = (trace.parameters[2][name] - trace.parameters[0][name] for trace in (got, want))
    norm, other = got.metrics[0]["grad_norm"], want.metrics[0]["grad_norm"]
    seen = proof.Differences(
        Difference(max(shares), 0.06),
        Difference(float(np.abs(moved - wanted).mean() / np.abs(wanted).mean()), 0.1),
        Difference(abs(norm - other) / other, 0.02),
        scores(got, want, 3e-2),
    )
    assert_within(seen)


def assert_within(seen: proof.Differences) -> None:
    for name in ("gradients", "weights", "norm", "log_probs"):
        difference = getattr(seen, name)
        assert difference is None or difference.seen < difference.tolerance, (name, difference)
    proof.record(seen)
