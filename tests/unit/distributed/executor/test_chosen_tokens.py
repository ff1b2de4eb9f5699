"""A train worker whose loss singles out tokens of a whole update, whatever its micro batches and ranks are."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import Aggregation, Loss, PolicyLoss
from roll.algorithms.objectives import ClippedCovariance, PenalizedCovariance
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
    """A policy with a number of its own for each kind of token. No optimizer: every update has the same weights."""

    takes_media = False

    def __init__(self, all_reduce_sum: Callable[[Sequence[float]], list[float]], rank: int, num_ranks: int) -> None:
        self.dp_rank, self.dp_size, self._sum = rank, num_ranks, all_reduce_sum
        self.gradients: list[np.ndarray] = []

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return self._sum(values)

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        weights, sums = torch.linspace(-2, -0.1, 100, dtype=torch.float64, requires_grad=True), MetricSums()
        for batch in micro_batches:
            total, metrics = loss(TokenOutputs(log_probs=weights[batch.input_ids]), batch, scale)
            total.backward()
            sums.merge([metrics])
        assert weights.grad is not None
        self.gradients.append(weights.grad.numpy())
        return sums, {"grad_norm": 0.0}


def gradients(objective: ClippedCovariance | PenalizedCovariance, rows_of_ranks: list[list[int]], size: int):
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
        job = TrainJob(loss, 1.0, NUM_UPDATES, 1, credit, choice=objective.choice)
        counts = tuple(
            len(micro_batches(own.lengths, part, limits)) for part in np.split(np.arange(len(own)), NUM_UPDATES)
        )
        kinds, flat = [("old_log_probs", rows, own.lengths)], old[token_indices(samples.lengths, rows)]
        report = worker.train(TrainRequest(job, rows, limits, counts), kinds, own, None, flat)
        return strategy, report.sums

    found = on_ranks(len(rows_of_ranks), run) if len(rows_of_ranks) > 1 else [run(0, alone)]
    total = [sum(updates) for updates in zip(*(strategy.gradients for strategy, _ in found), strict=True)]
    share = MetricSums().merge([sums for _, sums in found]).result()["covariance_fraction"]
    return np.array(total), share


@pytest.mark.parametrize(
    "objective",
    [PenalizedCovariance(0.1), PenalizedCovariance(2e-4, 0.5), ClippedCovariance(0.2, 0.1, 5.0)],
    ids=["kl_cov", "kl_cov, one token", "clip_cov"],
)
def test_micro_batches_and_ranks_have_no_say_in_an_update(objective: ClippedCovariance | PenalizedCovariance) -> None:
    expected, share = gradients(objective, [[0, 1, 2, 3, 4, 5, 6, 7]], 4)
    assert share > 0
    for rows_of_ranks in ([[0, 1, 2, 3, 4, 5, 6, 7]], [[1, 3, 4, 6], [0, 2, 5, 7]], [[0, 4], [3, 7], [1, 5], [2, 6]]):
        for size in (1, 2, 4):
            found, of_tokens = gradients(objective, rows_of_ranks, size)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
            assert of_tokens == pytest.approx(share)
