"""Calls that may hang or crash, on real Ray."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.errors import WorkerError
from roll.utils.imports import resolve, with_script_code

MakePool = Callable[..., TaskPool]
SHORT_S = 0.2  # for calls that never come back, however long one waits


def workers(number: int) -> RolePlace:
    return RolePlace("rewards.math", tuple(WorkerSlot(i, local_rank=i) for i in range(number)))


@pytest.fixture
def make_pool(resources: ResourceManager) -> Iterator[MakePool]:
    pools: list[TaskPool] = []

    def make(worker_class: str = "tests.toys:ToyWorker") -> TaskPool:
        pools.append(TaskPool("rewards.math", resources, workers(1), worker_class))
        return pools[-1]

    yield make
    for pool in pools:
        pool.kill()


@pytest.fixture(scope="module")
def pair(resources: ResourceManager) -> Iterator[TaskPool]:
    """Two workers for all tests that end none: a process takes seconds to start."""
    pool = TaskPool("rewards.math", resources, workers(2), "tests.toys:ToyWorker")
    pool.wait_ready()
    yield pool
    pool.kill()


def test_calls_get_their_own_results_in_their_order_and_use_all_workers(pair: TaskPool) -> None:
    async def ask() -> tuple[list[int], set[int]]:
        sums = await asyncio.gather(*(pair.call("add", i, 1, timeout_s=30) for i in range(300)))
        pids = await asyncio.gather(*(pair.call("pid", timeout_s=30) for _ in range(20)))
        return sums, set(pids)

    sums, pids = asyncio.run(ask())
    assert sums == list(range(1, 301))
    assert len(pids) == 2
    assert asyncio.run(pair.call_each("add", [(i, 1) for i in range(600)], timeout_s=60)) == list(range(1, 601))


def test_workers_find_the_code_of_the_drivers_script_also_those_that_replace_others(make_pool: MakePool) -> None:
    """A class inside a function, which holds a lambda: no worker could import either."""
    double = lambda number: 2 * number  # noqa: E731

    class Local:
        def twice(self, number: int) -> int:
            if number < 0:
                os._exit(1)
            return resolve("roll_script:double")(number)  # pyright: ignore[reportCallIssue]

    with with_script_code({"Local": Local, "double": double}):
        pool = make_pool("roll_script:Local")
        pool.wait_ready()
        replies = asyncio.run(pool.call_each("twice", [(3,), (-1,), (4,)], timeout_s=60))
    assert [replies[0], replies[2], pool.num_restarts > 0] == [6, 8, True]


def test_calls_that_raise_hang_or_kill_their_worker_fail_alone(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """Made together, so that they share batches. The call that hangs is the only one with a short limit."""
    pool = make_pool()
    pool.wait_ready()
    children: list[int] = []

    async def ask() -> Any:
        children.append(await pool.call("start_child", timeout_s=60))
        return await asyncio.gather(
            pool.call_each("sleep", [(0.0,), ("soon",)], timeout_s=60),
            pool.call("fail", "bad input", timeout_s=60),
            pool.call_each("sleep", [(600.0,)], timeout_s=SHORT_S),
            pool.call("add", 2, 3, timeout_s=60),
            pool.call("die", timeout_s=60),
            pool.call("add", 4, 5, timeout_s=60),
            return_exceptions=True,
        )

    (slept, wrong), raised, (hung,), second, died, third = asyncio.run(ask())
    assert (slept, second, third) == (0.0, 5, 9)
    assert isinstance(wrong, WorkerError) and "TypeError" in str(wrong)
    assert isinstance(raised, WorkerError)
    assert "rewards.math rank 0 failed in fail: ValueError: bad input" in str(raised)
    assert isinstance(hung, TimeoutError)
    assert f"rewards.math: sleep took longer than {SHORT_S:g} s" in str(hung)
    assert isinstance(died, WorkerError)
    assert "rewards.math rank 0 died in die" in str(died)
    assert pool.num_restarts == 3  # the batch, then the two culprits alone
    replaced = "rewards.math rank 0 is replaced by a new worker: "
    assert f"{replaced}sleep took longer than {SHORT_S:g} s" in caplog.text
    assert f"{replaced}its process died in die" in caplog.text
    deadline = time.monotonic() + 60
    while psutil.pid_exists(children[0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(children[0])


def test_whatever_escapes_from_a_call_or_cannot_travel_fails_that_call_alone(pair: TaskPool) -> None:
    """KeyboardInterrupt, SystemExit and other BaseExceptions mean something to Ray and to asyncio; a reply or an
    argument may be what no process can send, or read."""
    kinds = ("interrupt", "exit", "panic", "cancel", "mute", "lock", "trap")

    async def ask() -> list[object]:
        calls = [pair.call("escape", kind, timeout_s=60) for kind in kinds]
        calls.append(pair.call("add", threading.Lock(), 1, timeout_s=60))
        good = [pair.call("add", i, i, timeout_s=60) for i in range(4)]
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
            r"failed in escape: Mute: \(its message cannot be made\)",
            "escape failed: .*lock",
            "escape failed: .*no number",
            "add failed: .*lock",
        ),
        strict=True,
    ):
        assert isinstance(reply, WorkerError) and re.search(text, str(reply), re.DOTALL), (text, reply)


def test_workers_that_cannot_be_constructed_fail_the_calls(make_pool: MakePool) -> None:
    pool = make_pool("tests.toys:BrokenWorker")
    with pytest.raises(WorkerError, match="RuntimeError: no such model"):
        asyncio.run(pool.call("add", 1, 2, timeout_s=30))
