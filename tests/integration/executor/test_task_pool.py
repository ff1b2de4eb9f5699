"""Calls that may hang or crash, on real Ray."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from roll.configs.plan.layout import RolePlace, Seat
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.errors import WorkerError

MakePool = Callable[..., TaskPool]


@pytest.fixture
def make_pool(resources: ResourceManager) -> Iterator[MakePool]:
    pools: list[TaskPool] = []

    def make(num_workers: int, worker_class: str = "tests.fakes:ToyWorker") -> TaskPool:
        place = RolePlace("rewards.math", tuple(Seat(i, local_rank=i) for i in range(num_workers)))
        pools.append(TaskPool("rewards.math", resources, place, worker_class))
        return pools[-1]

    yield make
    for pool in pools:
        pool.kill()


def test_calls_get_their_own_results_and_use_all_workers(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.wait_ready()

    async def ask() -> tuple[list[int], set[int]]:
        sums = await asyncio.gather(*(pool.call("add", i, 1, timeout_s=30) for i in range(300)))
        pids = await asyncio.gather(*(pool.call("pid", timeout_s=30) for _ in range(20)))
        return sums, set(pids)

    sums, pids = asyncio.run(ask())
    assert sums == list(range(1, 301))
    assert len(pids) == 2


def test_of_calls_made_together_each_has_its_own_result_limit_and_failure(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.wait_ready()

    async def ask() -> list[object]:
        numbers = await pool.call_each("add", [(i, 1) for i in range(600)], timeout_s=30)
        return [numbers, *await pool.call_each("sleep", [(0.0,), (600.0,), ("soon",), (0.0,)], timeout_s=5)]

    numbers, first, hung, raised, last = asyncio.run(ask())
    assert numbers == list(range(1, 601))
    assert first == last != hung
    assert isinstance(hung, TimeoutError) and "sleep took longer than 5 s" in str(hung)
    assert isinstance(raised, WorkerError) and "TypeError" in str(raised)


def test_calls_that_raise_hang_or_kill_their_worker_fail_alone(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.wait_ready()
    children: list[int] = []

    async def ask() -> list[object]:
        children.append(await pool.call("start_child", timeout_s=30))
        calls = [("add", 0, 1), ("fail", "bad input"), ("sleep", 600.0), ("add", 2, 3), ("die",), ("add", 4, 5)]
        return await asyncio.gather(
            *(pool.call(method, *arguments, timeout_s=5) for method, *arguments in calls), return_exceptions=True
        )

    first, raised, hung, second, died, third = asyncio.run(ask())
    assert (first, second, third) == (1, 5, 9)
    assert isinstance(raised, WorkerError)
    assert "rewards.math rank 0 failed in fail: ValueError: bad input" in str(raised)
    assert isinstance(hung, TimeoutError)
    assert "rewards.math: sleep took longer than 5 s" in str(hung)
    assert isinstance(died, WorkerError)
    assert "rewards.math rank 0 died in die" in str(died)
    assert pool.num_restarts == 3  # the batch, then the two culprits alone
    deadline = time.monotonic() + 60
    while psutil.pid_exists(children[0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(children[0])


def test_whatever_escapes_from_a_call_or_cannot_travel_fails_that_call_alone(make_pool: MakePool) -> None:
    """KeyboardInterrupt, SystemExit and other BaseExceptions mean something to Ray and to asyncio; a reply or an
    argument may be what no process can send, or read."""
    pool = make_pool(2)
    pool.wait_ready()
    kinds = ("interrupt", "exit", "panic", "cancel", "mute", "lock", "trap")

    async def ask() -> list[object]:
        calls = [pool.call("escape", kind, timeout_s=60) for kind in kinds]
        calls.append(pool.call("add", threading.Lock(), 1, timeout_s=60))
        good = [pool.call("add", i, i, timeout_s=60) for i in range(4)]
        return await asyncio.wait_for(asyncio.gather(*calls, *good, return_exceptions=True), 300)

    *failed, a, b, c, d = asyncio.run(ask())
    assert [a, b, c, d] == [0, 2, 4, 6]
    for reply, text in zip(
        failed,
        (
            "failed in escape: KeyboardInterrupt: as Ctrl-C",
            "failed in escape: SystemExit: enough",
            "failed in escape: Panic: unwrap on None",
            "failed in escape: CancelledError",
            r"failed in escape: Mute: \(its own text cannot be made\)",
            "escape failed on the way: .*lock",
            "escape failed on the way: .*no number",
            "add failed on the way: .*lock",
        ),
        strict=True,
    ):
        assert isinstance(reply, WorkerError) and re.search(text, str(reply), re.DOTALL), (text, reply)


def test_workers_that_cannot_be_constructed_fail_the_calls(make_pool: MakePool) -> None:
    pool = make_pool(1, "tests.fakes:BrokenWorker")
    with pytest.raises(WorkerError, match="RuntimeError: no such model"):
        asyncio.run(pool.call("add", 1, 2, timeout_s=30))
