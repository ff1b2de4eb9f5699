"""An engine that leaves its devices in the middle of answers, and others that go on with them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.answers import Continuation
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.strategy.base import ALL_STATES
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.fakes import FakeGenerateStrategy
from tests.helpers.rollouts import arrived, here


class Counting(FakeGenerateStrategy):
    """Counts on from the last token of a prompt; after `most` tokens of an answer, or after one of an answer in
    `endless`, it waits to be aborted."""

    most = 10**6
    endless: frozenset[int] = frozenset()

    async def _answer(self, request: GenerationRequest) -> list[Generation]:
        first, wanted = int(request.prompt_ids[-1]) + 1, request.sampling.max_new_tokens
        most = 1 if request.first_sample in self.endless else self.most
        if wanted > most:
            await self.aborted.setdefault(request.request_id, asyncio.Event()).wait()
        count = min(wanted, most)
        ids = np.arange(first, first + count, dtype=np.int32)
        reason = "length" if count == wanted else "abort"
        versions = np.full(count, self.version, np.int32)
        return [Generation(ids, -ids.astype(np.float32), versions, reason)] * request.num_samples


class Engine:
    """A worker in this process, as Ray would reach it."""

    def __init__(self, version: int):
        strategy = "tests.unit.distributed.executor.rollout.test_hand_over:Counting"
        self.worker = GenerateWorker(Blueprint("actor_infer", 0, 1, 0, 0, "cpu", strategy, WorkerConfig()), 8)
        assert isinstance(self.worker.strategy, Counting)
        self.strategy = self.worker.strategy
        self.strategy.version = version
        self.call = self
        self.submitted: list[GenerationRequest] = []

    def remote(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        async def run() -> object:
            given = arrived(arguments)
            if method == "submit":
                self.submitted += given[0]
            reply = getattr(self.worker, method)(*given)
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.ensure_future(run())


class Workers:
    role = "actor_infer"

    def __init__(self, *engines: Engine):
        self.handles = engines


def request(name: str, num_samples: int = 3) -> GenerationRequest:
    return GenerationRequest(name, np.array([10], np.int32), SamplingParams(6), num_samples)


def token_ids(answers: list[Generation]) -> list[list[int]]:
    return [here(answer).token_ids.tolist() for answer in answers]


async def turns(until: Callable[[], bool]) -> None:
    while not until():
        await asyncio.sleep(0)


def test_what_an_engine_hands_over_goes_on_elsewhere_and_it_is_asked_again_once_it_is_back() -> None:
    async def play() -> None:
        first, second = Engine(version=1), Engine(version=2)
        for engine in (first, second):
            await engine.worker.setup()
        client = EngineClient(Workers(first, second))  # type: ignore[arg-type]
        first.strategy.most = 4
        told: list[int] = []
        asked = asyncio.create_task(client.generate(request("r"), lambda number, answer: told.append(number)))
        await turns(lambda: bool(first.strategy.in_flight))
        assert not second.submitted
        await first.worker.hand_over(ALL_STATES)
        answers = await asked
        assert token_ids(answers) == [[11, 12, 13, 14, 15, 16]] * 3
        assert [here(answer).policy_versions.tolist() for answer in answers] == [[1] * 4 + [2] * 2] * 3
        assert {answer.finish_reason for answer in answers} == {"length"}
        assert sorted(told) == [0, 1, 2]
        assert [(part.samples, part.prefix and part.prefix.num_tokens) for part in second.submitted] == [
            (range(number, number + 1), 4) for number in range(3)
        ]
        assert client.num_retries == 0 and client._router.load(0) == client._router.load(1) == 0

        assert token_ids(await client.generate(request("s"))) == [[11, 12, 13, 14, 15, 16]] * 3
        assert len(first.submitted) == 1  # it is known to be away
        other = EngineClient(Workers(first, second), "other")  # type: ignore[arg-type]
        assert token_ids(await other.generate(request("t"))) == [[11, 12, 13, 14, 15, 16]] * 3
        assert len(first.submitted) == 2  # which this client learns with its first request

        first.strategy.most = 6
        await first.worker.load_states(ALL_STATES)
        await turns(lambda: not client._replicas[0].is_away)
        await client.generate(request("u"))
        assert len(first.submitted) == 3

    asyncio.run(asyncio.wait_for(play(), 120))


def test_where_all_engines_are_away_requests_wait_for_one() -> None:
    async def play() -> None:
        engine = Engine(version=1)
        await engine.worker.setup()
        client = EngineClient(Workers(engine))  # type: ignore[arg-type]
        await engine.worker.hand_over(ALL_STATES)
        asked = asyncio.create_task(client.generate(request("r", 1)))
        await turns(lambda: client._replicas[0].is_away)
        await engine.worker.load_states(ALL_STATES)
        assert token_ids(await asked) == [[11, 12, 13, 14, 15, 16]]

    asyncio.run(asyncio.wait_for(play(), 120))


def test_enough_answers_of_what_was_moved_end_the_others_wherever_they_are() -> None:
    """The second engine goes on with three answers one by one, of which the first to end is enough."""

    async def play() -> None:
        first, second = Engine(version=1), Engine(version=2)
        for engine in (first, second):
            await engine.worker.setup()
        client = EngineClient(Workers(first, second))  # type: ignore[arg-type]
        first.strategy.most, second.strategy.endless = 4, frozenset({1, 2})
        told: list[int] = []
        asked = asyncio.create_task(
            client.generate(replace(request("r", 3), enough=1), lambda number, answer: told.append(number))
        )
        await turns(lambda: bool(first.strategy.in_flight))
        await first.worker.hand_over(ALL_STATES)
        answers = await asked
        assert [(here(answer).num_tokens, answer.finish_reason) for answer in answers] == [
            (6, "length"),
            (5, "abort"),
            (5, "abort"),
        ]
        assert sorted(told) == [0, 1, 2]
        assert not second.strategy.in_flight and client._router.load(0) == client._router.load(1) == 0

    asyncio.run(asyncio.wait_for(play(), 60))


def test_nobody_is_asked_for_more_once_enough_answers_are_whole() -> None:
    """The engine has cut the others for that, and leaves at the same moment."""
    whole = Continuation(replace(request("r", 3), enough=1))
    begun = Generation(np.array([11], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "moved")
    whole.receive(1, replace(begun, finish_reason="stop"))
    whole.receive(2, begun)
    answers = whole.answers()
    assert answers is not None
    assert [(here(answer).num_tokens, answer.finish_reason) for answer in answers] == [
        (0, "abort"),
        (1, "stop"),
        (1, "abort"),
    ]
