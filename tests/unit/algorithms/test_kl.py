from __future__ import annotations

import numpy as np
import pytest
import torch

from roll.algorithms.kl import KLController, KLEstimator, estimate_kl

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.3, 0.2], dtype=torch.float64)
REVERSE = (P * (P.log() - Q.log())).sum().item()


def test_estimators_are_those_of_the_docstring() -> None:
    p, q = torch.tensor(0.5).log(), torch.tensor(0.25).log()
    values = {name: estimate_kl(p, q, name).item() for name in ("k1", "k2", "k3", "abs")}
    assert values == pytest.approx({"k1": 0.693, "k2": 0.240, "k3": 0.193, "abs": 0.693}, abs=1e-3)
    for name in ("k2", "mse", "k3", "low_var_kl", "abs"):
        assert (estimate_kl(P.log(), Q.log(), name) >= 0).all()
        assert torch.equal(estimate_kl(P.log(), P.log(), name), torch.zeros_like(P))
    # As a loss, on policy: k1 has none, k2 has that of KL(policy || reference), k3 that of KL(reference || policy).
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros_like(P), rtol=0, atol=1e-12)
    torch.testing.assert_close(expected_gradient("k2"), exact_gradient(reverse=True), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(expected_gradient("k3"), exact_gradient(reverse=False), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "kl", "k3", "low_var_kl"])
def test_k1_and_k3_are_unbiased_for_the_reverse_kl(name: KLEstimator) -> None:
    """Exact expectation over a vocabulary of four."""
    assert (P * estimate_kl(P.log(), Q.log(), name)).sum().item() == pytest.approx(REVERSE, rel=1e-12)


def expected_gradient(name: KLEstimator) -> torch.Tensor:
    """Of the estimator as a loss: exact expectation over samples from P, with respect to P's logits."""
    logits = P.log().clone().requires_grad_()
    (P * estimate_kl(logits.log_softmax(0), Q.log(), name)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def exact_gradient(reverse: bool) -> torch.Tensor:
    logits = P.log().clone().requires_grad_()
    log_p = logits.log_softmax(0)
    (log_p.exp() * (log_p - Q.log()) if reverse else Q * (Q.log() - log_p)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_a_controller_drives_a_responsive_kl_to_its_target() -> None:
    controller = KLController(0.2, target_kl=6.0, horizon=10000)
    assert controller.update(9.0, 256).coef == pytest.approx(0.2 * (1 + 0.2 * 256 / 10000))  # error .5 is clipped to .2
    assert controller.update(6.6, 500).coef == pytest.approx(0.2 * (1 + 0.1 * 500 / 10000))
    assert controller.update(0.0, 500).coef == pytest.approx(0.2 * (1 - 0.2 * 500 / 10000))
    assert controller.update(6.0, 500).coef == 0.2
    controller = KLController(0.01, target_kl=2.0, horizon=1000)
    for _ in range(400):
        controller = controller.update(0.5 / controller.coef, num_samples=100)
    assert 0.5 / controller.coef == pytest.approx(2.0, rel=0.05)
    controller = KLController(0.2)
    assert controller.update(np.inf, 10**6) is controller
