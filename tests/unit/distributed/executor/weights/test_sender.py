"""Ranks of a trainer that send together, as real processes; the lead's also reads for all engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from roll.distributed.executor.weights.sender import EngineRoute, SendPlan, WeightSender
from roll.distributed.weights.bucket import WeightBucket
from roll.distributed.weights.transport import WeightReceiver
from roll.errors import StrategyError
from tests.helpers.processes import RankPool, shared_segments

CPU = torch.device("cpu")
NUM_RANKS, NUM_BUCKETS = 3, 4
EACH_ITS_OWN = SendPlan((EngineRoute("memory", (0, 1)),))
NOT_BY_THE_LEAD = SendPlan((EngineRoute("memory", (2, 1)), EngineRoute("memory", (1,)), EngineRoute("memory", (2, 2))))


@dataclass
class Answers:
    values: list[int]
    error: Exception | None = None

    def result(self, timeout_s: float | None = None) -> list[int]:
        self.raise_failures()
        return self.values

    def raise_failures(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class Engines:
    """All ranks of all engines of a plan, which read at once. They fail at bucket `refused`."""

    plan: SendPlan
    refused: int | None = None
    read: list[dict[tuple[int, int], float]] = field(default_factory=list)  # per bucket: what each rank found

    def __post_init__(self) -> None:
        readers = [reader for rank in self.plan.senders for reader in self.plan.readers("memory", rank)]
        self.receivers = {(engine, rank): WeightReceiver(CPU, rank) for engine, rank in readers}

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> Answers:
        number = len(self.read)
        if number == self.refused:
            return Answers([], StrategyError(f"bucket {number} is refused"))
        self.read.append({})
        for (engine, rank), receiver in self.receivers.items():
            source, is_first, version, whole = arguments[engine]
            assert whole
            assert (method, is_first, version is None) == ("receive_weights", number == 0, number < NUM_BUCKETS - 1)
            ((_, tensor),) = receiver.read(source)
            self.read[number][engine, rank] = float(tensor.mean())
        return Answers([version for _, _, version, _ in arguments.values()])

    def close(self) -> None:
        for receiver in self.receivers.values():
            receiver.close()


def buckets(rank: int, unfit: int | None) -> Iterator[WeightBucket]:
    """Bucket k of rank r is full of 10 r + k. To draw one is collective, as it is with a trainer. Number `unfit` cannot
    be copied."""
    for number in range(NUM_BUCKETS):
        dist.barrier()
        size, device = 1000 * (number + 1), "meta" if number == unfit else "cpu"
        yield [("a", torch.full((size,), 10.0 * rank + number, device=device))]
    dist.barrier()


def two_updates(plan: SendPlan, unfit: dict[int, int], refused: int | None) -> list[tuple[Any, Any]]:
    """What came of the first update, in which rank r cannot send its bucket `unfit[r]` and the engines refuse bucket
    `refused`, and of the second, in which all is well; and what was read."""
    rank = dist.get_rank()
    sender, engines, outcomes = WeightSender(rank, CPU), Engines(plan), []
    for version in (1, 2):
        engines.read, engines.refused = [], refused if version == 1 else None
        try:
            outcome: Any = sender.send(buckets(rank, unfit.get(rank) if version == 1 else None), engines, plan, version)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        outcomes.append((outcome, engines.read))
        dist.barrier()
        assert not shared_segments([os.getpid()])
    sender.close()
    engines.close()
    return outcomes


def expected(plan: SendPlan, num_buckets: int = NUM_BUCKETS) -> list[dict[tuple[int, int], float]]:
    readers = {reader: rank for rank in plan.senders for reader in plan.readers("memory", rank)}
    return [{reader: 10.0 * rank + number for reader, rank in readers.items()} for number in range(num_buckets)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(NUM_RANKS) as pool:
        yield pool


@pytest.mark.parametrize("plan", [EACH_ITS_OWN, NOT_BY_THE_LEAD], ids=["each its own", "not by the lead"])
def test_every_rank_of_every_engine_reads_what_its_own_sender_wrote(plan: SendPlan, pool: RankPool) -> None:
    lead, *others = pool.run(two_updates, plan, {}, None, timeout_s=120)
    versions = [[version] * len(plan.ways) for version in (1, 2)]
    assert lead == [(versions[0], expected(plan)), (versions[1], expected(plan))]
    assert others == [[(None, []), (None, [])]] * 2


@pytest.mark.parametrize("number", range(NUM_BUCKETS))
@pytest.mark.parametrize("culprit", range(2))
def test_a_rank_that_cannot_send_a_bucket_says_so_and_nobody_waits_for_it(
    culprit: int, number: int, pool: RankPool
) -> None:
    outcomes = pool.run(two_updates, EACH_ITS_OWN, {culprit: number}, None, timeout_s=120)
    first = [outcome for (outcome, _), _ in outcomes]
    assert first.pop(culprit).startswith("NotImplementedError: Cannot copy out of meta tensor")
    assert first == [None, None]
    assert outcomes[0][0][1] == expected(EACH_ITS_OWN, number)
    assert outcomes[0][1] == ([2], expected(EACH_ITS_OWN))


@pytest.mark.parametrize("plan", [EACH_ITS_OWN, NOT_BY_THE_LEAD], ids=["each its own", "not by the lead"])
@pytest.mark.parametrize("number", range(NUM_BUCKETS))
def test_an_engine_that_fails_at_any_bucket_leaves_no_rank_waiting(number: int, plan: SendPlan, pool: RankPool) -> None:
    lead, *others = pool.run(two_updates, plan, {}, number, timeout_s=120)
    assert lead[0] == (f"StrategyError: bucket {number} is refused", expected(plan, number))
    assert lead[1] == ([2] * len(plan.ways), expected(plan))
    assert others == [[(None, []), (None, [])]] * 2


def test_two_ranks_that_fail_at_once_both_say_so(pool: RankPool) -> None:
    outcomes = pool.run(two_updates, EACH_ITS_OWN, {0: 2, 1: 2}, None, timeout_s=120)
    assert ["NotImplementedError" in str(outcome) for (outcome, _), _ in outcomes] == [True, True, False]
    assert outcomes[0][1] == ([2], expected(EACH_ITS_OWN))
