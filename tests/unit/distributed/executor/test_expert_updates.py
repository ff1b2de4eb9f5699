"""A train worker whose updates have an expert's rows beside those of the policy."""

import numpy as np
import pytest

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import ExpertLoss, MixedLoss, PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import TrainJob, TrainReport, TrainRequest, micro_batches
from roll.distributed.executor.worker import TrainWorker
from roll.types.batch import Rows
from roll.types.metrics import MetricSums
from tests.integration.executor.parts import make_samples
from tests.unit.distributed.executor.test_zero_gradient_updates import OneNumber

LENGTHS = (4, 8, 7, 5)  # one token of each is the prompt
SHOWN = Rows.of([[1] * 3, [1] * 5, [1] * 4, [1] * 9], [[False] + [True] * n for n in (2, 4, 3, 8)])
ADVANTAGES = (1.0, 0.0, -2.0, 0.5)


def train(num_updates: int, weight: float | None, values: tuple[float, ...] = ADVANTAGES) -> TrainReport:
    worker, samples, limits = object.__new__(TrainWorker), make_samples(LENGTHS), BatchLimits(1)
    worker.strategy = OneNumber()
    loss = PolicyLoss(PolicyGradient())
    mixed = loss if weight is None else MixedLoss(loss, ExpertLoss(), weight)
    weights = np.array([float(value != 0) for value in values])
    credit = RowCredit(CreditSettings(), np.array(values), weights if not any(values) else None)
    job, rows = TrainJob(mixed, 1.0, num_updates, 2, credit), np.arange(len(samples))

    def counts(lengths: np.ndarray) -> tuple[int, ...]:
        return tuple(len(micro_batches(lengths, part, limits)) for part in np.split(rows, num_updates))

    request = TrainRequest(job, rows, limits, counts(samples.lengths), counts(SHOWN.lengths))
    return worker.train(request, [], samples, None if weight is None else SHOWN)


def result(report: TrainReport) -> dict[str, float]:
    return MetricSums().merge([report.sums]).result()


@pytest.mark.parametrize("num_updates", [1, 2])
def test_each_update_learns_its_part_of_the_experts_rows_by_their_own_count(num_updates: int) -> None:
    """All log-probs are one number: the gradient of a mean over tokens by it is -1 for the expert's, and minus the mean
    of the rows' advantages for the policy's."""
    mean = np.mean(np.split(np.array(ADVANTAGES), num_updates), axis=1)
    mu = 0.25
    mixed, plain = result(train(num_updates, mu)), result(train(num_updates, None))
    assert mixed["grad_norm"] == pytest.approx(np.abs((1 - mu) * mean + mu).mean(), rel=1e-6)
    assert plain["grad_norm"] == pytest.approx(np.abs(mean).mean(), rel=1e-6)
    assert mixed["expert_loss"] == mixed["expert_nll_mean"] == 1.0
    for name in plain.keys() - {"grad_norm"}:
        assert mixed[name] == plain[name], name


def test_an_update_learns_the_experts_with_and_without_the_policy() -> None:
    own = sum(LENGTHS) - len(LENGTHS)
    assert train(1, None).num_tokens == own
    assert train(1, 0.5).num_tokens == own + 17
    nothing = (0.0,) * 4
    assert result(train(1, None, nothing))["skipped_updates"] == 1
    mixed = result(train(1, 0.5, nothing))
    assert "skipped_updates" not in mixed and mixed["grad_norm"] == pytest.approx(0.5)
