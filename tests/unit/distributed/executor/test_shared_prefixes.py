"""A train worker whose strategy computes rows that begin alike as trees."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.worker import TrainWorker, _cut
from roll.types.batch import LossScale, MicroBatch, Rows, SampledRows
from roll.types.forest import forest_of
from roll.types.metrics import MetricSums
from tests.unit.distributed.executor.test_shards import groups_of


class Trees:
    """A strategy that keeps what it is to train on. `others`: what the other rank needs in each update."""

    takes_media, dp_rank, dp_size = False, 0, 2

    def __init__(self, shares: bool, others: Sequence[float] = (1, 3)):
        self.shares_prefixes, self.others = shares, others
        self.trained: list[MicroBatch] = []

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return [*values[: len(self.others)], *self.others]

    def train_step(self, batches: list[MicroBatch], *more: Any) -> tuple[MetricSums, dict[str, float]]:
        self.trained = batches
        return MetricSums(), {}

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        return forest_of(keys).num_tokens


def worker(shares: bool, others: Sequence[float] = (1, 3)) -> TrainWorker:
    made = TrainWorker.__new__(TrainWorker)
    made.strategy = Trees(shares, others)  # type: ignore[assignment]
    return made


def rows() -> Rows:
    keys = groups_of(4, 4)
    ids = np.concatenate(keys).astype(np.int32)
    lengths = np.array([len(key) for key in keys], np.int32)
    return Rows(
        lengths=lengths,
        input_ids=ids,
        response_mask=np.ones(len(ids), bool),
        loss_weights=np.ones(len(keys), np.float32),
    )


def update(made: TrainWorker, limits: BatchLimits, count: int, chosen: np.ndarray | None = None) -> list[list[int]]:
    """The first tokens of each micro batch's rows, sorted, which tell the groups apart."""
    request: Any = SimpleNamespace(limits=limits, job=SimpleNamespace(loss=None, temperature=1.0))
    made._update(request, rows(), np.arange(8) if chosen is None else chosen, count, LossScale(1, 1), [])
    trained = made.strategy.trained  # type: ignore[attr-defined]
    return [sorted(batch.input_ids[:, 0].tolist()) for batch in trained]


def test_an_update_keeps_groups_together_in_equal_micro_batches() -> None:
    """Prompts of two groups begin with two numbers. By lengths alone, which are equal, they are mixed."""
    batches = update(worker(True), BatchLimits(4), 2)
    assert all(len(set(batch)) == 1 for batch in batches) and len(batches) == 2
    mixed = update(worker(False), BatchLimits(4), 2)
    assert all(len(set(batch)) == 2 for batch in mixed)
    # This rank needs 1 and 1 of 160 tokens, where rows would be 400; the other one 1 and 3.
    limits, chunks = BatchLimits(1, max_tokens=200, packs=True), [np.arange(8), np.arange(8)]
    assert worker(True)._most_needed(rows(), chunks, limits) == [1, 3]
    assert worker(False)._most_needed(rows(), chunks, limits) == [2, 3]


def test_rows_whose_recorded_experts_differ_part_where_they_do() -> None:
    """In the first token of every other row: two trees for each group, of 60 tokens each where one has 80."""
    plain, limits = rows(), BatchLimits(1, max_tokens=160)
    routes = np.zeros((plain.num_tokens, 2, 2), np.int16)
    routes[np.cumsum(plain.lengths)[2::4] - plain.lengths[2::4]] = 1
    routes[np.cumsum(plain.lengths)[3::4] - plain.lengths[3::4]] = 1
    zeros, versions = np.zeros(plain.num_tokens, np.float32), np.zeros(plain.num_tokens, np.int32)
    sampled = SampledRows(**vars(plain), rollout_log_probs=zeros, policy_versions=versions, routes=routes)
    strategy: Any = Trees(True)
    assert [len(batch) for batch in _cut(strategy, plain, np.arange(8), limits)] == [8]
    assert [len(batch) for batch in _cut(strategy, sampled, np.arange(8), limits)] == [4, 4]


def test_idle_rows_are_left_out_before_the_others_become_trees() -> None:
    """The second group is idle: the other's rows compute 80 tokens as a tree, where they are 200. An update of idle
    rows keeps one."""
    idle, limits = np.zeros(8, bool), BatchLimits(1, max_tokens=100, packs=True)
    idle[1::2] = True  # rows of the two groups take turns
    chunks = [np.arange(8), np.arange(1, 8, 2)]
    moving, counts = worker(True, (1, 1))._without_zero_gradient_rows(chunks, idle, rows(), limits)
    assert [chunk.tolist() for chunk in moving] == [[0, 2, 4, 6], [1]] and counts == [1, 1]
    assert worker(False, (1, 1))._without_zero_gradient_rows(chunks, idle, rows(), limits)[1] == [2, 1]
    batches = update(worker(True), limits, counts[0], moving[0])
    assert len(batches) == 1 and len(batches[0]) == 4
