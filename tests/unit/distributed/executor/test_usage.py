"""A question to all workers, and who answers it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from roll.configs.tables.roles import Role
from roll.distributed.executor import usage
from roll.distributed.executor.clusters import RunClusters
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.worker_process import Failure
from roll.distributed.executor.usage import UsageRequest, Work, WorkerUsage
from roll.utils.worker_usage import TraceOptions, Usage

READY = {"train 0": Usage({"train": 1.0}, {}), "train 1": Failure(1, "gone", died=True)}


class Workers:
    """Of a role; their replies are named `<role> <rank>`."""

    def __init__(self, role: str, count: int):
        self.role, self.asked = role, list[TraceOptions]()
        self.slots = [SimpleNamespace(devices=(rank,)) for rank in range(count)]

    def ask_usage(self, look: TraceOptions) -> dict[int, str]:
        self.asked.append(look)
        return {rank: f"{self.role} {rank}" for rank in range(len(self.slots))}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """What was waited for; instead of Ray, of which only the named replies are there."""
    found: list[tuple[list[str], int]] = []

    def wait(refs: Sequence[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        found.append((list(refs), num_returns))
        done = [ref for ref in refs if ref in READY][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    monkeypatch.setattr(usage.ray, "wait", wait)
    monkeypatch.setattr(usage, "fetch", lambda ref, rank: READY[ref])
    return found


def test_all_are_asked_at_once_and_who_is_gone_or_hangs_is_left_out(waits: list[tuple[list[str], int]]) -> None:
    clusters: Any = [Workers("train", 2), Workers("infer", 2)]
    question = UsageRequest(clusters, TraceOptions(True))
    assert [cluster.asked for cluster in clusters] == [[TraceOptions(True)]] * 2 and not waits
    answers = question.answers()
    assert [count for _, count in waits] == [4]
    assert {role: [(worker.rank, worker.devices) for worker in found] for role, found in answers.items()} == {
        "train": [(0, (0,))],
        "infer": [],
    }


def test_what_roles_were_given_is_that_of_the_moment_of_the_question(waits: list[tuple[list[str], int]]) -> None:
    class Trainer:
        num_taken = 0

        def take_work(self) -> dict[str, Work]:
            self.num_taken += 1
            return {"train": Work(rows=8)} if self.num_taken == 1 else {}

    pool, trainer = TaskPool.__new__(TaskPool), Trainer()
    pool.role, pool.usage = "rewards.math", lambda look: [WorkerUsage(0, (), READY["train 0"])]  # type: ignore[method-assign, assignment]
    made: Any = RunClusters.__new__(RunClusters)
    made._clusters, made._pools, made.scorers, made.trainers = [Workers("train", 1)], [pool], {}, {"train": trainer}
    made._config = SimpleNamespace(roles={"train": Role("train", "train", "lm")})
    answers = made.ask_usage(TraceOptions())
    assert not waits
    trainer.take_work()
    trained, rewards = answers()
    assert (trained.role, trained.use, trained.work, len(trained.workers)) == ("train", "train", {"train": Work(8)}, 1)
    assert (rewards.role, rewards.use) == ("rewards.math", "cpu")
