"""What a client makes of an engine that does not take its requests, and an engine of a client that is gone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.processes.worker_process import Failure
from roll.distributed.executor.rollout import engine_client
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.finished_requests import FinishedRequests
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.errors import RollError, WorkerError
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.fakes import FakeGenerateStrategy
from tests.helpers.rollouts import arrived, here


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
            reply = getattr(self.worker, method)(*arrived(arguments))
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.ensure_future(run())


class Mortal:
    """An engine that is dead until it is `back`; then it answers with the token 7."""

    def __init__(self):
        self.call = self
        self.is_back = False
        self.submitted: list[GenerationRequest] = []

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.reply(method, *arguments))

    async def reply(self, method: str, *arguments: object) -> object:
        if not self.is_back:
            raise RayActorError
        if method == "submit":
            self.submitted += arrived(arguments)[0]
        if method != "take":
            return None
        await turns(lambda: bool(self.submitted))
        return FinishedRequests.pack([(self.submitted.pop(), {0: of_token(7)})])


class Patient(EngineClient):
    """Waits for engines to come back, until a rank is in `gone`."""

    def __init__(self, *engines: Mortal | Process):
        super().__init__(Workers(engines), waits=True)  # type: ignore[arg-type]
        self.gone: set[int] = set()
        self.lost: list[int] = []

    def _lost(self, rank: int, error: RollError) -> None:
        self.lost.append(rank)

    def _unrecoverable(self, rank: int, error: RollError) -> RollError | None:
        return WorkerError(f"rank {rank} is lost") if rank in self.gone else None


class Taking(EngineClient):
    takes_cut = True


@dataclass
class Workers:
    handles: Sequence[Refusing | Process | Mortal | Telling]
    role: str = "actor_infer"


@pytest.mark.parametrize("reply", [Failure(0, "ValueError: no room"), TypeError("no room")])
def test_a_request_that_the_engine_does_not_take_fails_instead_of_waiting(reply: object) -> None:
    async def ask() -> None:
        client = EngineClient(Workers([Refusing(reply)]))  # type: ignore[arg-type]
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3))
        await asyncio.wait_for(client.generate(request), 20)

    with pytest.raises(WorkerError, match="actor_infer rank 0 failed in submit.*no room"):
        asyncio.run(ask())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_RETURN_POLL_S", 0.0)


async def turns(until: Callable[[], bool]) -> None:
    """Gives the others theirs."""
    while not until():
        await asyncio.sleep(0)


class Telling:
    """An engine that hands answers over when it is told to: `replies` are what its takes give, None is its death."""

    def __init__(self):
        self.call = self
        self.replies: asyncio.Queue[dict[int, Generation] | None] = asyncio.Queue()
        self.submitted: list[GenerationRequest] = []

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.reply(method, *arguments))

    async def reply(self, method: str, *arguments: object) -> object:
        if method == "submit":
            self.submitted += arrived(arguments)[0]
        if method != "take":
            return Failure(0, "not back") if method == "wait_serving" else None
        answers = await self.replies.get()
        if answers is None:
            raise RayActorError
        return FinishedRequests.pack([(self.submitted[0], answers)])


def of_token(token_id: int) -> Generation:
    return Generation(np.array([token_id], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")


def test_answers_are_told_as_they_come_each_once_although_an_engine_dies_in_between() -> None:
    async def play() -> None:
        engines = Telling(), Telling()
        client = EngineClient(Workers(engines))  # type: ignore[arg-type]
        told: list[tuple[int, list[int]]] = []
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3), num_samples=3)
        asked = asyncio.create_task(
            client.generate(request, lambda number, answer: told.append((number, here(answer).token_ids.tolist())))
        )
        await turns(lambda: any(engine.submitted for engine in engines))
        first, second = sorted(engines, key=lambda engine: not engine.submitted)
        first.replies.put_nowait({2: of_token(12)})
        await turns(lambda: told == [(2, [12])])
        assert first.submitted[0].tells_each and not asked.done()
        assert [client._router.load(engines.index(engine)) for engine in (first, second)] == [2, 0]
        first.replies.put_nowait(None)
        await turns(lambda: bool(second.submitted))
        assert list(second.submitted[0].samples) == [0, 1]  # what came stands
        second.replies.put_nowait({0: of_token(10)})
        await turns(lambda: len(told) == 2)
        second.replies.put_nowait({1: of_token(11)})
        answers = await asked
        assert told == [(2, [12]), (0, [10]), (1, [11])]
        assert [here(answer).token_ids.tolist() for answer in answers] == [[10], [11], [12]]
        assert client._router.load(engines.index(second)) == 0

    asyncio.run(play())


def test_who_gives_up_after_some_answers_leaves_no_load_and_has_the_others_cut() -> None:
    async def play() -> None:
        engine = Telling()
        aborted: list[object] = []
        reply = engine.reply

        async def watched(method: str, *arguments: object) -> object:
            if method == "abort":
                aborted.extend(arguments)
            return await reply(method, *arguments)

        engine.reply = watched  # type: ignore[method-assign]
        client = Taking(Workers([engine]))  # type: ignore[arg-type]
        told: list[int] = []
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3), num_samples=3)
        asked = asyncio.create_task(client.generate(request, lambda number, answer: told.append(number)))
        await turns(lambda: bool(engine.submitted))
        engine.replies.put_nowait({2: of_token(12)})
        await turns(lambda: bool(told))
        asked.cancel()
        await turns(lambda: bool(aborted))
        assert aborted == [["r"]] and client._router.load(0) == 0
        cut = asyncio.create_task(client.cut.take())
        whole, half = of_token(10), replace(of_token(11), finish_reason="abort")
        engine.replies.put_nowait({0: whole})
        await turns(engine.replies.empty)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not cut.done()  # one is to come
        engine.replies.put_nowait({1: half})
        assert await cut == [(1, True), (1, False)] and await client.cut.take() == []

    asyncio.run(play())


@pytest.mark.parametrize("reply", [Failure(0, "ValueError: no room"), None])
def test_nobody_waits_for_what_an_engine_that_is_gone_had_of_a_request(reply: Failure | None) -> None:
    async def play() -> None:
        engine = Telling() if reply is None else Refusing(reply)
        client = EngineClient(Workers([engine]))  # type: ignore[arg-type]
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3))
        asked = asyncio.create_task(client.generate(request))
        await turns(lambda: bool(client._replicas[0].exchange))
        if isinstance(engine, Telling):
            await turns(lambda: bool(engine.submitted))
            engine.replies.put_nowait(None)
        else:
            await asyncio.sleep(0)
        asked.cancel()
        assert await asyncio.wait_for(client.cut.take(), 60) == []

    asyncio.run(play())


@pytest.mark.usefixtures("at_once")
def test_where_engines_come_back_a_request_waits_for_one_although_another_is_given_up() -> None:
    async def play() -> list[Generation]:
        engines = Mortal(), Mortal()
        client = Patient(*engines)
        answer = asyncio.create_task(
            client.generate(GenerationRequest("r", np.array([1], np.int32), SamplingParams(3)))
        )
        await turns(lambda: all(replica.failure is not None for replica in client._replicas))
        client.gone = {0}
        await turns(lambda: client._replicas[0].is_given_up)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        engines[1].is_back = True
        return await answer

    (answer,) = asyncio.run(play())
    assert list(here(answer).token_ids) == [7]


@pytest.mark.usefixtures("at_once")
def test_where_no_engine_comes_back_a_request_that_waits_fails_with_the_cause() -> None:
    async def play() -> None:
        client = Patient(Mortal())
        answer = asyncio.create_task(
            client.generate(GenerationRequest("r", np.array([1], np.int32), SamplingParams(3)))
        )
        await turns(lambda: client._replicas[0].failure is not None)
        client.gone = {0}
        await answer

    with pytest.raises(WorkerError, match="rank 0 is lost"):
        asyncio.run(play())


def test_engines_that_wait_for_weights_are_no_deaths_of_the_request_that_they_refuse() -> None:
    """Three were replaced unseen by this client; the fourth serves."""

    async def play() -> None:
        blueprint = Blueprint("actor_infer", 0, 1, 0, 0, "cpu", "tests.fakes:FakeGenerateStrategy", WorkerConfig())
        workers = [GenerateWorker(blueprint, waits_for_weights=rank < 3) for rank in range(4)]
        for worker in workers:
            await worker.setup()
        client = EngineClient(Workers([Process(worker) for worker in workers]))  # type: ignore[arg-type]
        request = GenerationRequest("r", np.array([7], np.int32), SamplingParams(3))
        (answer,) = await asyncio.wait_for(client.generate(request), 60)
        assert list(here(answer).token_ids) == [8, 9, 10]
        assert client.num_retries == 3
        for worker in workers:
            await worker.shutdown()

    asyncio.run(play())


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
