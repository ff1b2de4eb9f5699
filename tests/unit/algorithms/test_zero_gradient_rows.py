"""Rows that need not be computed, and that the loss says the same without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.loss import Aggregation, LossAggMode
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.objectives import BoundedWeight, ClippedRatio, Objective, PolicyGradient, TaperedWeight
from roll.algorithms.policy_loss import PolicyLoss
from roll.types.batch import LossScale, TokenOutputs, TrainBatch
from roll.types.collate import pad, padding_rows
from roll.types.metrics import MetricSums
from tests.integration.executor.parts import make_samples

LENGTHS = (3, 9, 4, 4, 7, 2)


def batch(seed: int = 0) -> TrainBatch:
    """Rows 1 and 4 have no advantage, row 5 no weight; a row of padding comes last."""
    samples = make_samples(LENGTHS)
    weights = np.array([1, 1, 0.5, 1, 1, 0], np.float32)
    samples = replace(samples, loss_weights=weights)
    samples = type(samples).concatenate([samples, padding_rows(samples, 1)])
    generator = np.random.default_rng(seed)
    rows = np.repeat(np.arange(len(samples)), samples.lengths)
    advantages = generator.normal(size=samples.num_tokens).astype(np.float32) * ~np.isin(rows, (1, 4))
    old = generator.uniform(-3, -1, samples.num_tokens).astype(np.float32)
    return TrainBatch(samples, advantages * samples.response_mask, old * samples.response_mask)


def test_rows_without_advantage_weight_or_response_are_idle() -> None:
    made = batch()
    assert ZeroGradientRows().find(made).tolist() == [False, True, False, False, True, True, True]
    one = made.advantages.copy()
    one[np.flatnonzero(np.repeat(np.arange(7), made.samples.lengths) == 4)[-1]] = 1e-30
    assert not ZeroGradientRows().find(replace(made, advantages=one))[4]
    made = batch()
    assert ZeroGradientRows().find(replace(made, advantages=made.advantages + ~made.samples.response_mask))[1]


MODES: list[LossAggMode] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("objective", [ClippedRatio(dual_clip=2), PolicyGradient(), BoundedWeight(), TaperedWeight()])
@pytest.mark.parametrize("importance_sampling", ["token", "seq", "segment", "product"])
def test_the_loss_its_gradient_and_its_metric_are_the_same_without_them(
    mode: LossAggMode, objective: Objective, importance_sampling: str
) -> None:
    made = batch()
    idle_rows = ZeroGradientRows(counts_tokens=mode == "token-mean")
    idle = idle_rows.find(made)
    policy_loss = PolicyLoss(objective, importance_sampling, Aggregation(mode, 9))  # type: ignore[arg-type]
    lengths = made.samples.response_lengths
    scale = LossScale(int(lengths.sum()), int((lengths > 0).sum()))
    micro = pad(made, np.arange(7), 1)
    log_probs = torch.from_numpy(np.random.default_rng(1).uniform(-3, -1, micro.input_ids.shape).astype(np.float32))

    def run(rows: np.ndarray) -> tuple[torch.Tensor, MetricSums, torch.Tensor]:
        given = log_probs.clone().requires_grad_()
        chosen = pad(made, rows, 1)
        width = chosen.input_ids.shape[1]
        loss, metrics = policy_loss(TokenOutputs(log_probs=given[rows, :width]), chosen, scale)
        (gradient,) = torch.autograd.grad(loss, given)
        return loss.detach(), metrics, gradient

    loss, metrics, gradient = run(np.arange(7))
    less_loss, less_metrics, less_gradient = run(np.flatnonzero(~idle))
    less_metrics.merge([idle_rows.metrics(made.samples, idle, epochs=1)])
    assert (gradient == less_gradient).all() and gradient.abs().sum() > 0
    assert less_loss == pytest.approx(float(loss), rel=1e-6)
    assert less_metrics.result()["pg_loss"] == pytest.approx(metrics.result()["pg_loss"], rel=1e-6)
    assert less_metrics.result()["skipped_fraction"] == pytest.approx(3 / 6)


def test_in_every_epoch_they_count_anew() -> None:
    made = batch()
    rows, tokens = (
        ZeroGradientRows(counts).metrics(made.samples, ZeroGradientRows().find(made), epochs=3)
        for counts in (False, True)
    )
    assert rows.means["pg_loss"] == (0, 3 * 3)
    assert tokens.means["pg_loss"] == (0, 3 * (8 + 6 + 1))
