"""The limit of an episode counts what is not spent on waiting for answers; on a virtual clock."""

import asyncio

import pytest

from roll.pipeline.agentic.episode import stopped
from tests.helpers.virtual_time import run_virtually


async def an_episode(limit_s: float | None, env_s: float, answer_s: float, turns: int) -> None:
    async with asyncio.timeout(limit_s) as clock:
        for _ in range(turns):
            await asyncio.sleep(env_s)
            with stopped(clock):
                await asyncio.sleep(answer_s)


def test_what_engines_take_does_not_count() -> None:
    run_virtually(an_episode(10.0, env_s=3.0, answer_s=1000.0, turns=3))
    run_virtually(an_episode(None, env_s=3.0, answer_s=1000.0, turns=3))
    with pytest.raises(TimeoutError):
        run_virtually(an_episode(10.0, env_s=3.0, answer_s=1000.0, turns=4))


def test_an_answer_that_is_cancelled_leaves_no_limit_behind() -> None:
    async def cancel() -> str:
        episode = asyncio.ensure_future(an_episode(10.0, env_s=3.0, answer_s=1000.0, turns=1))
        await asyncio.sleep(500)
        episode.cancel()
        (ended,) = await asyncio.gather(episode, return_exceptions=True)
        return type(ended).__name__

    assert run_virtually(cancel()) == "CancelledError"
