"""A clock that jumps, and a wait for ever that is named."""

import asyncio

import pytest

from roll.distributed.scheduler.event_loop import Deadlock, run_virtually


async def sleeper(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return asyncio.get_running_loop().time()


def test_waiting_takes_virtual_time_only() -> None:
    async def work() -> list[float]:
        return list(await asyncio.gather(sleeper(86_400.0 * 30), sleeper(5.0)))

    assert run_virtually(work()) == pytest.approx([86_400.0 * 30, 5.0])


async def waits_for_nobody() -> None:
    await asyncio.Event().wait()


def test_a_deadlock_names_who_waits_and_since_when() -> None:
    async def work() -> None:
        await sleeper(2.5)
        await asyncio.gather(waits_for_nobody(), waits_for_nobody(), waits_for_nobody())

    with pytest.raises(Deadlock, match=r"^at 2\.5 s these wait for ever: 1 x .*work, 3 x waits_for_nobody$"):
        run_virtually(work())


def test_it_works_where_a_loop_runs_already_as_in_a_notebook() -> None:
    async def work() -> None:
        await asyncio.gather(sleeper(5.0), waits_for_nobody())

    async def cell() -> float:
        with pytest.raises(Deadlock, match=r"^at 5 s these wait for ever"):
            run_virtually(work())
        return run_virtually(sleeper(86_400.0))

    assert asyncio.run(cell()) == 86_400.0
