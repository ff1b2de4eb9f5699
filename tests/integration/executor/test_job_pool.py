"""Long jobs on real Ray: many at once, workers that die or fall silent, and the one job that is to blame."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.pools.job import FatalJobError, Job
from roll.distributed.executor.pools.job_pool import JobPool
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.errors import WorkerError

MakePool = Callable[..., JobPool]


@pytest.fixture
def make_pool(resources: ResourceManager) -> Iterator[MakePool]:
    pools: list[JobPool] = []

    def make(num_workers: int, jobs_per_worker: int = 8, on_gone: Callable[[str], None] | None = None) -> JobPool:
        place = RolePlace("environments", tuple(WorkerSlot(i, local_rank=i) for i in range(num_workers)))
        pool = JobPool(
            "environments",
            resources,
            place,
            "tests.fakes:ToyJobWorker",
            lambda name: (name,),
            jobs_per_worker,
            on_gone=on_gone,
        )
        pools.append(pool)
        pool.wait_ready()
        return pool

    yield make
    for pool in pools:
        pool.kill()


def job(name: str, *work: object, limit_s: float = 120.0) -> Job:
    return Job(name, work, limit_s)


@pytest.mark.slow
def test_jobs_run_at_once_within_each_workers_room(make_pool: MakePool) -> None:
    pool = make_pool(2, jobs_per_worker=4)

    async def ask() -> list[object]:
        return await asyncio.gather(*(pool.run(job(f"j{i}", "wait", 0.05)) for i in range(30)))

    replies = asyncio.run(ask())
    assert {name for name, _ in replies} == {"environments-0", "environments-1"}  # type: ignore[misc]
    assert max(most for _, most in replies) == 4  # type: ignore[misc]
    assert pool.counts == {"done": 30}  # of both workers


@pytest.mark.slow
def test_a_cancelled_job_is_cancelled_where_it_runs_and_frees_its_place(make_pool: MakePool) -> None:
    pool = make_pool(1, jobs_per_worker=1)

    async def ask() -> object:
        first = asyncio.create_task(pool.run(job("long", "wait", 60)))
        second = asyncio.create_task(pool.run(job("next", "wait", 0)))
        await asyncio.sleep(0.3)
        first.cancel()
        return await asyncio.wait_for(second, 30)

    assert asyncio.run(ask()) == ("environments-0", 1)
    assert pool.num_restarts == 0


@pytest.mark.slow
def test_a_stopped_job_returns_what_its_worker_has_of_it_and_one_that_has_not_begun_nothing(
    make_pool: MakePool,
) -> None:
    pool = make_pool(1, jobs_per_worker=2)

    async def ask() -> list[object]:
        jobs = [asyncio.create_task(pool.run(job("begun", "wait", 60)))]
        await pool.run(job("handed in with it", "wait", 0))
        jobs += [asyncio.create_task(pool.run(job(name, "wait", 60))) for name in ("to be handed in", "in line")]
        await asyncio.sleep(0)
        for name in ("in line", "to be handed in", "begun"):
            pool.stop(name)
        return await asyncio.gather(*jobs)

    assert asyncio.run(ask()) == [("environments-0", 2), None, None]


@pytest.mark.slow
def test_a_job_that_kills_its_worker_fails_and_no_other_is_lost(make_pool: MakePool) -> None:
    gone: list[str] = []
    pool = make_pool(2, jobs_per_worker=8, on_gone=gone.append)

    async def ask() -> list[object]:
        jobs = [job(f"j{i}", "wait", 0.2) for i in range(12)]
        jobs.insert(5, job("killer", "die"))
        return await asyncio.gather(*(pool.run(j) for j in jobs), return_exceptions=True)

    replies = asyncio.run(ask())
    assert isinstance(replies[5], FatalJobError)
    assert "environments" in str(replies[5]) and "died" in str(replies[5])
    others = replies[:5] + replies[6:]
    assert len(others) == 12 and not any(isinstance(reply, Exception) for reply in others)
    assert pool.num_restarts == len(set(gone)) == 3
    assert set(gone) < {f"environments-{i}" for i in range(5)}


@pytest.mark.slow
def test_a_worker_that_falls_silent_is_replaced(make_pool: MakePool) -> None:
    pool = make_pool(2, jobs_per_worker=4)

    async def ask() -> list[object]:
        jobs = [job("blocker", "block", 60.0, limit_s=1.0)] + [job(f"j{i}", "wait", 0.1) for i in range(5)]
        return await asyncio.gather(*(pool.run(j) for j in jobs), return_exceptions=True)

    replies = asyncio.run(ask())
    assert isinstance(replies[0], FatalJobError) and "did not reply for 1 s" in str(replies[0])
    assert not any(isinstance(reply, Exception) for reply in replies[1:])


@pytest.mark.slow
def test_a_job_that_raises_fails_alone_and_a_tired_worker_is_replaced_when_it_is_free(make_pool: MakePool) -> None:
    pool = make_pool(1)

    async def ask() -> list[object]:
        raised = await asyncio.gather(pool.run(job("bad", "fail", "no map")), return_exceptions=True)
        tired = await pool.run(job("tired", "rest"))
        fresh = await pool.run(job("fresh", "wait", 0))
        return [*raised, tired, fresh]

    raised, tired, fresh = asyncio.run(ask())
    assert type(raised) is WorkerError and "ValueError: no map" in str(raised)
    assert tired == ("environments-0", 1)
    assert fresh == ("environments-1", 1)


@pytest.mark.slow
def test_a_job_that_cannot_be_sent_fails_and_so_do_the_jobs_of_a_worker_that_lost_a_task(make_pool: MakePool) -> None:
    pool = make_pool(1)

    async def ask() -> list[object]:
        unsent = pool.run(job("unsent", "wait", threading.Lock()))
        replies = await asyncio.wait_for(asyncio.gather(unsent, return_exceptions=True), 60)
        jobs = [job("waits", "wait", 1000), job("loses", "lose")]
        lost = asyncio.gather(*(pool.run(j) for j in jobs), return_exceptions=True)
        return [*replies, *await asyncio.wait_for(lost, 60)]

    unsent, *lost = asyncio.run(ask())
    assert type(unsent) is WorkerError and "failed in submit: " in str(unsent) and "lock" in str(unsent)
    for reply in lost:
        assert type(reply) is WorkerError and "TaskError: KeyboardInterrupt: as Ctrl-C" in str(reply)
