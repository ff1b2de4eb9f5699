"""What becomes of requests and calls when the sampler's thread fails, hangs or is stopped."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, cast

import numpy as np
import pytest

from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.distributed.strategy.hf.sampler_thread import SamplerThread
from roll.errors import EngineDied, StrategyError
from roll.types.rollout import GenerationRequest, SamplingParams


class StuckSampler:
    """Has work from the start, and is in its first step until `go_on`; then it fails."""

    has_work = True

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def check(self, request: GenerationRequest) -> None:
        pass

    def step(self) -> list[object]:
        self.entered.set()
        self.go_on.wait()
        raise RuntimeError("out of memory")


@pytest.fixture
def sampler() -> Iterator[StuckSampler]:
    sampler = StuckSampler()
    yield sampler
    sampler.go_on.set()


async def stuck_calls(sampler: StuckSampler) -> tuple[SamplerThread, list[asyncio.Task[Any]]]:
    """A request and two calls that arrived during the step."""
    thread = SamplerThread(cast(BatchSampler, sampler))
    await asyncio.to_thread(sampler.entered.wait)
    request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3))
    work: list[Coroutine[Any, Any, Any]] = [
        thread.generate(request),
        thread.hold("pause"),
        thread.call(lambda: None),
    ]
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    await asyncio.sleep(0.01)
    return thread, tasks


async def errors_of(tasks: list[asyncio.Task[Any]]) -> list[object]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)


def test_calls_that_arrived_during_a_failing_step_fail_with_it(sampler: StuckSampler) -> None:
    async def play() -> None:
        _, tasks = await stuck_calls(sampler)
        sampler.go_on.set()
        for error in await errors_of(tasks):
            assert isinstance(error, EngineDied)
            assert "RuntimeError: out of memory" in str(error)

    asyncio.run(play())


def test_stop_from_another_thread_ends_requests_and_calls_at_once_though_the_step_hangs(
    sampler: StuckSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll.distributed.strategy.hf.sampler_thread._JOIN_TIMEOUT_S", 0.01)

    async def play() -> None:
        thread, tasks = await stuck_calls(sampler)
        await asyncio.to_thread(thread.stop)
        for error in await errors_of(tasks):
            assert type(error) is StrategyError
            assert str(error) == "the rollout engine was shut down"
        with pytest.raises(StrategyError, match="shut down"):
            await thread.release("pause")

    asyncio.run(play())
