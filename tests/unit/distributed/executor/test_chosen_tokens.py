"""A train worker whose loss singles out tokens of a whole update, whatever its micro batches and ranks are."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import Aggregation, Loss
from roll.algorithms.objectives import ClippedCovariance, PenalizedCovariance
from roll.algorithms.policy_loss import PolicyLoss
from roll.algorithms.second_moment import SecondMomentBound
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import TrainJob, TrainRequest, micro_batches
from roll.distributed.executor.worker import TrainWorker
from roll.types.batch import LossScale, MicroBatch, SampleBatch, TokenOutputs
from roll.types.columns import token_indices
from roll.types.metrics import MetricSums
from tests.fakes import FakeTrainStrategy
from tests.integration.executor.parts import make_samples
from tests.unit.algorithms.rows import alone, on_ranks

LENGTHS = (4, 8, 7, 5, 9, 3, 6, 6)
ADVANTAGES = np.array([0.7071, 1.1547, -0.577, 0.2, -1.3, 0.4, 0.9, -0.8])
NUM_UPDATES = 2


class PerToken(FakeTrainStrategy):
    """A policy with a number of its own for each kind of token. Instead of an optimizer: each update has lowered all of
    them by .1, the first by none."""

    takes_media = False

    def __init__(self, all_reduce_sum: Callable[[Sequence[float]], list[float]], rank: int, num_ranks: int) -> None:
        self.dp_rank, self.dp_size, self._sum = rank, num_ranks, all_reduce_sum
        self.gradients: list[np.ndarray] = []

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return self._sum(values)

    def _weights(self) -> torch.Tensor:
        return torch.linspace(-2, -0.1, 100, dtype=torch.float64) - 0.1 * len(self.gradients)

    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        return [TokenOutputs(log_probs=self._weights()[batch.input_ids].float()) for batch in micro_batches]

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        weights, sums = self._weights().requires_grad_(), MetricSums()
        for batch in micro_batches:
            total, metrics = loss(TokenOutputs(log_probs=weights[batch.input_ids]), batch, scale)
            total.backward()
            sums.merge([metrics])
        assert weights.grad is not None
        self.gradients.append(weights.grad.numpy())
        return sums, {"grad_norm": 0.0}


def gradients(
    objective: ClippedCovariance | PenalizedCovariance | SecondMomentBound, rows_of_ranks: list[list[int]], size: int
) -> tuple[np.ndarray, float]:
    """Of each update, over all ranks, and the share of tokens that were chosen."""
    samples = replace(make_samples(LENGTHS), trajectory_ids=np.arange(len(LENGTHS), dtype=np.int64))
    old = np.random.default_rng(3).uniform(-3, -0.1, samples.num_tokens).astype(np.float32) * samples.response_mask

    def run(rank: int, all_reduce_sum: Callable[[Sequence[float]], list[float]]) -> tuple[PerToken, MetricSums]:
        rows, limits = np.array(rows_of_ranks[rank]), BatchLimits(size)
        own: SampleBatch = samples.select(rows)
        worker = object.__new__(TrainWorker)
        worker.strategy = strategy = PerToken(all_reduce_sum, rank, len(rows_of_ranks))
        loss = PolicyLoss(objective, aggregation=Aggregation("token-mean"))
        credit = RowCredit(CreditSettings(), ADVANTAGES).of(rows)
        job = TrainJob(loss, 1.0, NUM_UPDATES, 1, credit)
        if isinstance(objective, SecondMomentBound):
            job = replace(job, moment_choice=objective.choice)
        else:
            job = replace(job, choice=objective.choice)
        counts = tuple(
            len(micro_batches(own.lengths, part, limits)) for part in np.split(np.arange(len(own)), NUM_UPDATES)
        )
        kinds, flat = [("old_log_probs", rows, own.lengths)], old[token_indices(samples.lengths, rows)]
        report = worker.train(TrainRequest(job, rows, limits, counts), kinds, own, None, flat)
        return strategy, report.sums

    found = on_ranks(len(rows_of_ranks), run) if len(rows_of_ranks) > 1 else [run(0, alone)]
    total = [sum(updates) for updates in zip(*(strategy.gradients for strategy, _ in found), strict=True)]
    shares = MetricSums().merge([sums for _, sums in found]).result()
    return np.array(total), shares[
        "clip_fraction" if isinstance(objective, SecondMomentBound) else "covariance_fraction"
    ]


@pytest.mark.parametrize(
    "objective",
    [
        PenalizedCovariance(0.1),
        PenalizedCovariance(2e-4, 0.5),
        ClippedCovariance(0.2, 0.1, 5.0),
        SecondMomentBound(0.3),
    ],
    ids=["kl_cov", "kl_cov, one token", "clip_cov", "m2po"],
)
def test_micro_batches_and_ranks_have_no_say_in_an_update(
    objective: ClippedCovariance | PenalizedCovariance | SecondMomentBound,
) -> None:
    expected, share = gradients(objective, [[0, 1, 2, 3, 4, 5, 6, 7]], 4)
    assert share > 0
    for rows_of_ranks in ([[0, 1, 2, 3, 4, 5, 6, 7]], [[1, 3, 4, 6], [0, 2, 5, 7]], [[0, 4], [3, 7], [1, 5], [2, 6]]):
        for size in (1, 2, 4):
            found, of_tokens = gradients(objective, rows_of_ranks, size)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
            assert of_tokens == pytest.approx(share)


def test_tokens_are_left_out_by_the_weights_of_their_own_update() -> None:
    """Two updates of the same four rows, with the same credit and old log-probs; before the second all log-probs have
    fallen by .1. What each leaves out is found in a loop, of its own weights."""
    samples = replace(make_samples((8, 7, 9, 6) * 2), trajectory_ids=np.arange(8, dtype=np.int64))
    half = samples.num_tokens // 2
    samples = replace(samples, input_ids=np.tile(samples.input_ids[:half], 2))
    samples = replace(samples, response_mask=np.tile(samples.response_mask[:half], 2))
    of_rows = np.random.default_rng(3).uniform(-2, -0.1, half).astype(np.float32) * samples.response_mask[:half]
    old, advantages, threshold = np.tile(of_rows, 2), np.tile([1.0, -1.0, 0.5, -0.5], 2), 0.2
    worker = object.__new__(TrainWorker)
    worker.strategy = strategy = PerToken(alone, 0, 1)
    credit = RowCredit(CreditSettings(), advantages).of(np.arange(8))
    loss = PolicyLoss(SecondMomentBound(threshold), aggregation=Aggregation("token-mean"))
    job = TrainJob(loss, 1.0, 2, 1, credit, moment_choice=SecondMomentBound(threshold).choice)
    kinds = [("old_log_probs", np.arange(8), samples.lengths)]
    worker.train(TrainRequest(job, np.arange(8), BatchLimits(2), (2, 2)), kinds, samples, None, old)

    of_tokens = np.repeat(advantages[:4], samples.lengths[:4])
    counted = np.flatnonzero(samples.response_mask[:half])
    left_out = []
    for update in range(2):
        weights = np.linspace(-2, -0.1, 100) - 0.1 * update
        log_ratio = {t: weights[samples.input_ids[t]] - of_rows[t] for t in counted}
        moved = {t for t in counted if log_ratio[t] * of_tokens[t] > 0}
        gone = set[int]()
        while moved - gone and np.mean([log_ratio[t] ** 2 for t in moved - gone]) > threshold:
            gone.add(max(moved - gone, key=lambda t: abs(log_ratio[t])))
        expected = np.zeros(100)
        for t in set(counted) - gone:
            expected[samples.input_ids[t]] -= np.exp(log_ratio[t]) * of_tokens[t] / len(counted)
        np.testing.assert_allclose(strategy.gradients[update], expected, rtol=1e-6, atol=1e-9)
        left_out.append(gone)
    assert left_out[0] != left_out[1] and all(left_out)
