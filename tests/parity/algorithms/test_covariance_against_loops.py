"""Clip-Cov and KL-Cov and their gradients against loops over single tokens in float64, micro batch by micro batch.

The loops share no code with roll.algorithms. Not covered: ties, which rounding decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.covariance import ClippedCovariance, PenalizedCovariance
from roll.algorithms.loss import Aggregation, PolicyLoss
from roll.algorithms.objectives import ClippedRatio
from roll.types.batch import TrainBatch
from tests.parity.algorithms.test_losses_against_loops import RTOL, response_tokens
from tests.unit.algorithms.rows import apply_loss, near, random_samples, random_train_batch

PARTS = [[0, 3], [2, 1, 5, 4]]
OBJECTIVES: dict[str, ClippedCovariance | PenalizedCovariance] = {
    "clip_cov": ClippedCovariance(0.25, 0.02, 1.0, ClippedRatio(0.15, 0.25)),
    "clip_cov, one token": ClippedCovariance(2e-4, 0.02, 1.0),
    "clip_cov, all of the range": ClippedCovariance(1.0, -0.5, 0.5),
    "clip_cov, none in the range": ClippedCovariance(0.5, 40.0, 50.0),
    "kl_cov": PenalizedCovariance(0.3, 0.7),
    "kl_cov, one token": PenalizedCovariance(2e-4, 1.3),
}


def batch_of(old: bool = True) -> tuple[TrainBatch, torch.Tensor]:
    rng = np.random.default_rng(7)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7, 9, 3], turns=2), old)
    return batch, torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()


def slow_loss(
    objective: ClippedCovariance | PenalizedCovariance, batch: TrainBatch, theta: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """The mean over the tokens, and how many were chosen."""
    rows, total, num_chosen = response_tokens(batch), torch.zeros((), dtype=torch.float64), 0
    for part in PARTS:
        of_row = {t: row for row in part for t in rows[row]}
        ratios, covariances = dict[int, torch.Tensor](), dict[int, float]()
        mean = sum(theta[t].item() for t in of_row) / len(of_row)
        advantage = sum(float(batch.advantages[t]) for t in of_row) / len(of_row)
        for t in of_row:
            old = theta[t].item() if batch.old_log_probs is None else float(batch.old_log_probs[t])
            ratios[t] = torch.exp(theta[t] - old)
            covariances[t] = (theta[t].item() - mean) * (float(batch.advantages[t]) - advantage)
        count = max(math.floor(objective.ratio * len(of_row)), 1)
        ordered = sorted(of_row, key=lambda t: covariances[t])
        if isinstance(objective, PenalizedCovariance):
            chosen = set(ordered[-count:])
        else:
            low, high = 1 - (objective.clipped.low or 0), 1 + (objective.clipped.high or 0)
            ordered = [
                t
                for t in ordered
                if objective.lowest < covariances[t] < objective.highest
                and not (batch.advantages[t] > 0 and ratios[t].item() > high)
                and not (batch.advantages[t] < 0 and ratios[t].item() < low)
            ]
            count = min(count, len(ordered))
            chosen = {ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)}
            assert len(chosen) == count
        num_chosen += len(chosen)
        for t, row in of_row.items():
            a, r = float(batch.advantages[t]), ratios[t]
            if isinstance(objective, PenalizedCovariance):
                loss = -r * a + (objective.coef * torch.log(r).abs() if t in chosen else 0.0)
            elif t in chosen:
                continue
            else:
                bound = torch.tensor(min(max(r.item(), low), high), dtype=torch.float64)
                loss = -min(r * a, bound * a if bound.item() != r.item() else r * a, key=lambda x: x.item())
            total = total + float(batch.samples.loss_weights[row]) * loss
    return total / sum(map(len, rows)), num_chosen


@pytest.mark.parametrize("old", [True, False], ids=["old log-probs", "own log-probs"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_the_loop_whatever_the_padding_is(name: str, old: bool) -> None:
    batch, theta = batch_of(old)
    expected, num_chosen = slow_loss(OBJECTIVES[name], batch, theta)
    (gradient,) = torch.autograd.grad(expected, [theta])
    loss = PolicyLoss(OBJECTIVES[name], aggregation=Aggregation("token-mean"))
    found = []
    for round_to in (1, 16):
        theta.grad = None
        parts = [np.array(part) for part in PARTS]
        value, metrics = apply_loss(loss, batch, {"log_probs": theta}, parts, round_to, outside=3.0)
        assert value == pytest.approx(expected.item(), rel=RTOL)
        assert theta.grad is not None
        torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)
        num_tokens = int(batch.samples.response_mask.sum())
        assert metrics.result()["covariance_fraction"] == pytest.approx(num_chosen / num_tokens)
        found.append(theta.grad)
    assert torch.equal(*found)
    if name != "clip_cov, none in the range":
        assert num_chosen >= len(PARTS)


def test_the_order_of_rows_and_of_micro_batches_has_no_say() -> None:
    batch, theta = batch_of()
    for objective in OBJECTIVES.values():
        loss, gradients = PolicyLoss(objective, aggregation=Aggregation("token-mean")), []
        for parts in (PARTS, [part[::-1] for part in PARTS[::-1]]):
            theta.grad = None
            apply_loss(loss, batch, {"log_probs": theta}, [np.array(part) for part in parts])
            assert theta.grad is not None
            gradients.append(theta.grad)
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_a_micro_batch_with_nothing_to_train_on_adds_exactly_nothing() -> None:
    batch, theta = batch_of()
    batch = replace(batch, samples=replace(batch.samples, response_mask=np.zeros_like(batch.samples.response_mask)))
    for objective in OBJECTIVES.values():
        theta.grad = None
        value, _ = apply_loss(PolicyLoss(objective), batch, {"log_probs": theta}, [np.arange(6)])
        assert value == 0 and theta.grad is not None and not theta.grad.any()
