"""A job that is stopped as soon as it is given out: its worker knows it before it is told to cancel it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from roll.distributed.executor.pools import job_pool
from roll.distributed.executor.pools.job import Job
from roll.distributed.executor.pools.job_pool import JobPool


class Calls:
    """A worker's handle, which answers nothing."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.call = self.call_split = self

    def options(self, **options: Any) -> "Calls":
        return self

    def remote(self, method: str, *arguments: Any) -> Any:
        self.made.append(method)
        reply = asyncio.get_running_loop().create_future()
        return [reply, None, None] if method == "take_apart" else reply


@pytest.mark.parametrize("turns", range(6))
def test_a_job_is_cancelled_after_it_was_submitted(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever turn of the loop the stop comes in, for a worker with a job already."""
    calls = Calls()
    worker = job_pool._Worker("w", SimpleNamespace(rank=0), calls, None)  # type: ignore[arg-type]
    monkeypatch.setattr(JobPool, "_start", lambda self, seat: worker)
    resources: Any = SimpleNamespace(slots=lambda place: [None])

    async def play() -> list[str]:
        pool = JobPool("envs", resources, None, "", lambda name: (), 8)  # type: ignore[arg-type]
        first = asyncio.create_task(pool.run(Job("first", None, 60.0)))
        while "take_apart" not in calls.made or "submit" not in calls.made:
            await asyncio.sleep(0)
        calls.made.clear()
        second = asyncio.create_task(pool.run(Job("second", None, 60.0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        pool.stop("second")
        for _ in range(6):
            await asyncio.sleep(0)
        made = list(calls.made)
        for task in (first, second):
            task.cancel()
        assert worker.exchange is not None
        worker.exchange.cancel()
        return made

    made = asyncio.run(play())
    assert made in ([], ["submit"], ["submit", "cancel"])
