"""A train worker whose loss need not see every row, next to one whose loss sees them all."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import Aggregation, Loss, LossAggMode
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import TrainJob, TrainRequest, micro_batches
from roll.distributed.executor.worker import TrainWorker
from roll.rl.settings import zero_gradient_rows
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from tests.contract.train_strategy import Case, built
from tests.fakes import FakeTrainStrategy
from tests.helpers.configs import config
from tests.helpers.processes import RankPool
from tests.integration.executor.parts import make_samples
from tests.parity.strategies.runs import exported

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


def two_steps(model_dir: Path, idle: ZeroGradientRows | None) -> tuple[dict[str, np.ndarray], float]:
    """Weights after two steps in which each rank has a group with equal rewards, and the rows left out of one."""
    worker, skipped = object.__new__(TrainWorker), 0.0
    case = Case("fsdp2_train", "roll.distributed.strategy.fsdp2.train:Fsdp2TrainStrategy", 2)
    with built(case, model_dir, adam_epsilon=1e-5) as strategy:
        worker.strategy = strategy
        for step in range(2):
            samples = make_samples((6, 9, 7, 5), seed=2 * step + strategy.dp_rank)
            credit = RowCredit(CreditSettings(), np.array([1.0, -1.0, 0.0, 0.0]))
            job = TrainJob(PolicyLoss(report_entropy=True), 1.0, 1, 1, credit, idle)
            report = worker.train(TrainRequest(job, np.arange(4), BatchLimits(2), (2,)), [], samples)
            skipped = report.sums.result().get("skipped_fraction", 0.0)
        return exported(strategy), skipped


def test_by_default_two_steps_end_at_the_weights_of_a_run_that_computes_all_rows(
    rank_pool: Callable[[int], RankPool], tiny_model_dir: Path
) -> None:
    """Within fp32 rounding, where a step moves a weight by 1e-3. Old log-probs are the update's own."""
    rules = [zero_gradient_rows(config(changes)) for changes in ({}, {"skip_idle_rows": False})]
    (fewer, left_out), (whole, none) = (rank_pool(2).run(two_steps, tiny_model_dir, rule)[0] for rule in rules)
    assert left_out == 0.5 and none == 0
    assert max(float(np.abs(whole[name] - fewer[name]).max()) for name in whole) < 1e-6
