"""A train worker whose loss need not see every row, next to one whose loss sees them all."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import Aggregation, Loss, LossAggMode, PolicyLoss
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.objectives import PolicyGradient
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import TrainJob, TrainRequest, micro_batches
from roll.distributed.executor.worker import TrainWorker
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from tests.fakes import FakeTrainStrategy
from tests.integration.executor.parts import make_samples

LENGTHS = (4, 8, 7, 5)


class OneNumber(FakeTrainStrategy):
    """A policy whose log-probs are all its one weight."""

    takes_media, dp_rank, dp_size = False, 0, 1

    def __init__(self) -> None:
        pass

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        weight, sums = torch.tensor(-1.0, requires_grad=True), MetricSums()
        for batch in micro_batches:
            total, metrics = loss(TokenOutputs(log_probs=weight * batch.response_mask), batch, scale)
            total.backward()
            sums.merge([metrics])
        assert weight.grad is not None
        return sums, {"grad_norm": abs(float(weight.grad))}


def trained(
    values: Sequence[float], mode: LossAggMode, num_updates: int, idle: ZeroGradientRows | None
) -> dict[str, float]:
    worker, samples, limits = object.__new__(TrainWorker), make_samples(LENGTHS), BatchLimits(2)
    worker.strategy = OneNumber()
    credit = RowCredit(CreditSettings(), np.array(values))
    job = TrainJob(PolicyLoss(PolicyGradient(), aggregation=Aggregation(mode)), 1.0, num_updates, 2, credit, idle)
    rows = np.arange(len(samples))
    counts = tuple(len(micro_batches(samples.lengths, part, limits)) for part in np.split(rows, num_updates))
    return MetricSums().merge([worker.train(TrainRequest(job, rows, limits, counts), [], samples).sums]).result()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize(
    ("values", "num_updates", "skipped"),
    [((1, 0, 0, 2), 1, 2), ((1, 0, 0, 2), 2, 2), ((1, 0, 0, 0), 2, 2), ((0, 0, 0, 0), 2, 2), ((0, 0, 0, 0), 1, 3)],
)
def test_an_idle_row_that_an_update_needs_counts_once_and_not_as_skipped(
    values: tuple[float, ...], num_updates: int, skipped: int, mode: LossAggMode
) -> None:
    whole = trained(values, mode, num_updates, None)
    some = trained(values, mode, num_updates, ZeroGradientRows(counts_tokens=mode == "token-mean"))
    assert some["pg_loss"] == pytest.approx(whole["pg_loss"], rel=1e-6)
    assert some["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-6)
    assert some["skipped_fraction"] == skipped / 4
