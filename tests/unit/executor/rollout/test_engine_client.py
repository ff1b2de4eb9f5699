"""What a client makes of an engine that does not take its requests, and an engine of a client that is gone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from roll.configs.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.processes.failures import Failure
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.errors import WorkerError
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.fakes import FakeGenerateStrategy
from tests.helpers.rollouts import here


class Refusing:
    """An engine that answers every `submit` with `reply`, or raises it, and never has a result."""

    def __init__(self, reply: object):
        self.reply = reply
        self.call = self

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if method == "submit" and isinstance(self.reply, Exception):
            future.set_exception(self.reply)
        elif method == "submit":
            future.set_result(self.reply)
        return future


class Process:
    """An engine in this process, as Ray would reach it."""

    def __init__(self, worker: GenerateWorker):
        self.worker = worker
        self.call = self

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        async def run() -> object:
            reply = getattr(self.worker, method)(*arguments)
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.ensure_future(run())


@dataclass
class Workers:
    handles: Sequence[Refusing | Process]
    role: str = "actor_infer"


@pytest.mark.parametrize("reply", [Failure(0, "ValueError: no room"), TypeError("no room")])
def test_a_request_that_the_engine_does_not_take_fails_instead_of_waiting(reply: object) -> None:
    async def ask() -> None:
        client = EngineClient(Workers([Refusing(reply)]))  # type: ignore[arg-type]
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3))
        await asyncio.wait_for(client.generate(request), 20)

    with pytest.raises(WorkerError, match="actor_infer rank 0 failed in submit.*no room"):
        asyncio.run(ask())


def test_requests_of_a_process_that_died_are_dropped_and_another_may_ask_under_the_same_ids() -> None:
    def request(*prompt: int) -> GenerationRequest:
        return GenerationRequest("train-0-0-0-0", np.array(prompt, np.int32), SamplingParams(3))

    async def play() -> None:
        worker = GenerateWorker(
            Blueprint("actor_infer", 0, 1, 0, 0, "cpu", "tests.fakes:FakeGenerateStrategy", WorkerConfig()), 3
        )
        assert isinstance(worker.strategy, FakeGenerateStrategy)
        await worker.setup()
        dead, fresh = (EngineClient(Workers([Process(worker)]), f"environments-{n}") for n in range(2))  # type: ignore[arg-type]
        unanswered = asyncio.create_task(dead.generate(request(1002)))
        while not worker.strategy.in_flight:
            await asyncio.sleep(0)
        (answer,) = await asyncio.wait_for(fresh.generate(request(7)), 60)
        assert list(here(answer).token_ids) == [8, 9, 10]

        cancelled = asyncio.create_task(fresh.generate(request(1002)))
        while len(worker.strategy.in_flight) < 2:
            await asyncio.sleep(0)
        cancelled.cancel()
        while len(worker.strategy.in_flight) > 1:
            await asyncio.sleep(0.001)

        worker.forget_client("environments-0")
        while worker.strategy.in_flight:
            await asyncio.sleep(0.001)
        unanswered.cancel()

    asyncio.run(play())
