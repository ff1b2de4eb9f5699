"""How far the policy is from a reference: per-token estimators, and the controller of the penalty's coefficient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

KLEstimator = Literal["kl", "k1", "mse", "k2", "low_var_kl", "k3", "abs"]

# exp(20) is 5e8: beyond any useful ratio, and far from the overflow of float32 that would turn a masked 0 into inf * 0.
MAX_LOG_RATIO = 20.0


def estimate_kl(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, estimator: KLEstimator) -> torch.Tensor:
    """One-sample estimates of KL(policy || reference), token by token. With d = log_probs - ref_log_probs:

    - `k1`, `kl`: d. Unbiased, any sign. Right inside a reward; as a loss its expected gradient is 0, so it only adds
      noise.
    - `k2`, `mse`: d^2 / 2. Biased, but its gradient d * grad(log p) is, on policy, the exact gradient of the KL of the
      next token.
    - `k3`, `low_var_kl`: exp(-d) - 1 + d. Unbiased, never negative, little variance. Its gradient (1 - exp(-d)) *
      grad(log p) is, on policy, that of the other direction, KL(reference || policy). Below d = -20 exp(-d) goes on
      as its tangent, so that it cannot overflow and a token that was given up is still pulled back.
    - `abs`: |d|. Neither; its gradient is, on policy, that of sum |policy - reference|.

    Inside a reward all but `k1` penalise tokens on both sides of the reference alike, which does not lower the KL.

    Schulman, "Approximating KL divergence" (2020), joschu.net/blog/kl-approx.html; gradients: Liu et al., arXiv
    2510.01555.

    Example: log-probs of .5 under the policy and .25 under the reference: k1 = log 2 = .693, k2 = .240, k3 = .5 - 1 +
    .693 = .193.
    """
    difference = log_probs - ref_log_probs
    match estimator:
        case "k1" | "kl":
            return difference
        case "k2" | "mse":
            return 0.5 * difference.square()
        case "k3" | "low_var_kl":
            beyond = torch.where(-difference > MAX_LOG_RATIO, -difference - MAX_LOG_RATIO, 0.0)
            return torch.exp((-difference).clamp(max=MAX_LOG_RATIO)) * (1 + beyond) - 1 + difference
        case "abs":
            return difference.abs()


@dataclass(frozen=True)
class KLController:
    """The coefficient of the KL penalty in the reward. Fixed when `target_kl` is None; otherwise it grows while the KL
    is above the target and shrinks below it (Ziegler et al., arXiv 1909.08593, section 2.2), at most 20% per `horizon`
    samples.

    Example: coef .2, target 6, horizon 10000; a step of 256 samples with a KL of 9 gives .2 * (1 + .2 * 256 / 10000) =
    .201024.
    """

    coef: float
    target_kl: float | None = None
    horizon: int = 10000

    def update(self, current_kl: float, num_samples: int) -> KLController:
        """The controller after a step of `num_samples` rows whose mean KL was `current_kl`."""
        if self.target_kl is None:
            return self
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        return replace(self, coef=self.coef * (1 + error * num_samples / self.horizon))
