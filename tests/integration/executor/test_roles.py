"""Scoring and training through the facades: the right rows meet the right scores, whoever computed them. Fake
strategies know what every token should score, so any mix-up of rows shows as an error in the metrics."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import SupervisedLoss
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.policy_loss import PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits, WorkerInfo
from roll.distributed.executor.jobs import TrainJob
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.roles import ScoreCluster, TrainCluster, share
from roll.types.batch import Rows, SampleBatch, SampleSet
from roll.types.collate import padding_rows
from roll.types.packing import rows_by_rank
from tests.integration.executor.parts import make_samples, meta_of

LENGTHS = (3, 9, 4, 4, 7, 2, 5, 8, 6, 3)  # 41 response tokens


@dataclass
class Roles:
    policy: TrainCluster
    critic: TrainCluster
    reference: ScoreCluster


@pytest.fixture(scope="module")
def roles(trainer: Cluster, critic: Cluster) -> Roles:
    """Two policy ranks and one critic, which also stands in for the reference: no two SampleSets split the rows
    alike."""
    made = Roles(
        TrainCluster(trainer, BatchLimits(3), BatchLimits(2)),
        TrainCluster(critic, BatchLimits(4), BatchLimits(4)),
        ScoreCluster(critic, BatchLimits(100, max_tokens=20, round_to=4)),
    )
    made.policy.finish_setup([WorkerInfo(0, 2, True), WorkerInfo(1, 2, False)])
    made.critic.finish_setup([WorkerInfo(0, 1, True)])
    made.reference.finish_setup([WorkerInfo(0, 1)])
    return made


def shard(batch: SampleBatch, num_ranks: int, num_updates: int) -> SampleSet:
    meta = meta_of(batch)
    missing = -len(batch) % (num_ranks * num_updates)
    if missing:
        batch = SampleBatch.concatenate([batch, padding_rows(batch, missing)])
    order = np.random.default_rng(1).permutation(len(batch))
    return SampleSet(meta, share(batch, rows_by_rank(batch.lengths, order, num_updates, num_ranks)))


def train_job(num_updates: int, epochs: int = 1, row_weights: np.ndarray | None = None) -> TrainJob:
    credit = RowCredit(CreditSettings(), np.arange(1.0, len(LENGTHS) + 1), row_weights)
    return TrainJob(PolicyLoss(), temperature=1.0, num_updates=num_updates, epochs=epochs, credit=credit)


def test_scores_meet_their_rows_whoever_computed_them(roles: Roles) -> None:
    batch = make_samples(LENGTHS)
    policy_samples, critic_samples = shard(batch, 2, 2), shard(batch, 1, 1)
    scores = {
        "old_log_probs": roles.policy.log_probs(policy_samples, temperature=1.0),
        "ref_log_probs": roles.reference.log_probs(policy_samples, temperature=1.0),
        "values": roles.critic.values(critic_samples),
    }
    metrics = roles.policy.train(policy_samples, train_job(num_updates=2), scores)
    assert metrics["ref_log_prob_error"] < 1e-6
    assert metrics["value_error"] == 0
    expected = sum((i + 1) * (length - 1) for i, length in enumerate(LENGTHS)) / (sum(LENGTHS) - len(LENGTHS))
    assert metrics["advantage"] == pytest.approx(expected)
    sums, counts = roles.policy.row_advantages[: len(LENGTHS)].T
    assert counts.tolist() == [length - 1 for length in LENGTHS]
    assert (sums / counts).tolist() == [row + 1 for row in range(len(LENGTHS))]


def test_updates_have_global_counts_and_the_same_micro_batches_on_all_ranks(roles: Roles) -> None:
    batch = make_samples(LENGTHS)
    metrics = roles.policy.train(shard(batch, 2, 2), train_job(num_updates=2, epochs=2))
    # 12 rows with padding: 3 rows per rank and update, so 2 micro batches of at most 2
    assert metrics["tokens_per_update"] == pytest.approx(41 / 2)
    assert metrics["rows_per_update"] == pytest.approx(5)
    assert metrics["num_micro_batches"] == 1.0
    assert metrics["grad_norm"] == 2.0
    assert 0 < metrics["learning_rate"] < 0.5


def test_row_weights_of_zero_leave_rows_out(roles: Roles) -> None:
    batch = make_samples(LENGTHS)
    weights = np.zeros(len(LENGTHS))
    weights[4] = 1.0
    metrics = roles.critic.train(shard(batch, 1, 1), train_job(1, row_weights=weights))
    assert metrics["advantage"] == 5.0
    assert metrics["rows_per_update"] == 1.0
    nothing = roles.critic.train(shard(batch, 1, 1), train_job(1, row_weights=np.zeros(len(LENGTHS))))
    assert nothing["skipped_updates"] == 1.0


@pytest.mark.parametrize(("num_updates", "skipped"), [(1, 8), (2, 7)])
def test_idle_rows_are_not_computed_and_count_all_the_same(roles: Roles, num_updates: int, skipped: int) -> None:
    """Of ten rows only one has an advantage: the rank without it computes its shortest row, and so do the updates."""
    batch, values = make_samples(LENGTHS), np.zeros(len(LENGTHS))
    values[1] = 3.0  # of 8 response tokens
    job = replace(train_job(num_updates), credit=RowCredit(CreditSettings(), values))
    whole = roles.policy.train(shard(batch, 2, num_updates), job)
    some = roles.policy.train(shard(batch, 2, num_updates), replace(job, zero_gradient_rows=ZeroGradientRows()))
    for name in ("tokens_per_update", "rows_per_update", "advantage_mean"):
        assert some[name] == whole[name]
    assert some["skipped_fraction"] == skipped / 10
    assert whole["advantage"] == pytest.approx(3 * 8 / 41)
    most_of_the_shortest = 2 * num_updates * max(LENGTHS[i] - 1 for i in np.argsort(LENGTHS)[:6])
    assert some["advantage"] >= 3 * 8 / (8 + most_of_the_shortest) > 2 * whole["advantage"] / num_updates


def test_rows_that_no_rollout_made_are_scored_and_trained_on_as_they_are(roles: Roles) -> None:
    batch = make_samples(LENGTHS)
    rows = Rows(
        lengths=batch.lengths,
        input_ids=batch.input_ids,
        response_mask=batch.response_mask,
        loss_weights=batch.loss_weights,
    )
    samples = SampleSet(meta_of(batch), share(rows, [np.arange(len(rows))]))
    scored = roles.reference.log_probs(samples, temperature=1.0)
    (piece,) = scored.pieces
    found = ray.get(cast(Any, piece.handle))
    np.testing.assert_allclose(found, -rows.input_ids / 100 * rows.response_mask, rtol=1e-6)
    metrics = roles.critic.train(samples, TrainJob(SupervisedLoss(), temperature=1.0, num_updates=2, epochs=3))
    assert metrics["tokens_per_update"] == 41 / 2 and metrics["rows_per_update"] == 5
    assert "advantage" not in metrics


def test_checkpoints_come_back(roles: Roles, tmp_path: Path) -> None:
    roles.critic.save_checkpoint(tmp_path / "critic")
    saved = int((tmp_path / "critic" / "rank0").read_text())
    roles.critic.train(shard(make_samples(LENGTHS), 1, 1), train_job(num_updates=1))
    roles.critic.load_checkpoint(tmp_path / "critic")
    roles.critic.save_checkpoint(tmp_path / "again")
    assert int((tmp_path / "again" / "rank0").read_text()) == saved
    roles.critic.save_hf_model(tmp_path / "hf")
    assert (tmp_path / "hf" / "config.json").exists()
