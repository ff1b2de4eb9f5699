"""An engine's process without Ray: how many answers are in flight, and what runs beside its event loop."""

import asyncio
import threading

import numpy as np
import pytest

from roll.configs.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.strategy.base import ALL_STATES, State
from roll.errors import EngineDied, StrategyError
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.fakes import FakeGenerateStrategy


class WatchedStrategy(FakeGenerateStrategy):
    """Counts the answers it is asked for at once. Its states move on the event loop, as in vLLM and SGLang, so a
    caller on the loop's own thread would wait for itself."""

    num_now = num_most = 0

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.shut_down = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        if self.mood == "hang":
            await self.shut_down.wait()
            raise StrategyError("the rollout engine was shut down")
        self.num_now += request.num_samples
        self.num_most = max(self.num_most, self.num_now)
        try:
            return await super().generate(request)
        finally:
            self.num_now -= request.num_samples

    def offload_states(self, states: frozenset[State]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        asyncio.run_coroutine_threadsafe(self._move("offload"), self.loop).result(5)

    def load_states(self, states: frozenset[State]) -> None:
        asyncio.run_coroutine_threadsafe(self._move("load"), self.loop).result(5)

    async def _move(self, what: str) -> None:
        self.moves.append(what)

    async def heartbeat(self) -> None:
        if self.mood == "hang":
            await asyncio.Event().wait()

    async def pause(self) -> None:
        await self.heartbeat()

    def shutdown(self) -> None:
        """Fails what is in flight, as an engine does that is ended."""
        self.moves.append("shutdown")
        self.loop.call_soon_threadsafe(self.shut_down.set)


def make_worker(max_answers: int | None, role: WorkerConfig | None = None) -> tuple[GenerateWorker, WatchedStrategy]:
    strategy = "tests.unit.executor.rollout.test_generate_worker:WatchedStrategy"
    blueprint = Blueprint("actor_infer", 0, 1, 0, 0, "cpu", strategy, role or WorkerConfig())
    worker = GenerateWorker(blueprint, max_answers)
    assert isinstance(worker.strategy, WatchedStrategy)
    return worker, worker.strategy


def test_no_more_answers_than_allowed_are_in_flight_and_all_requests_are_served() -> None:
    requests = [GenerationRequest(f"r{n}", np.array([n], np.int32), SamplingParams(3), 1 + n % 3) for n in range(30)]

    async def most(max_answers: int | None) -> int:
        worker, strategy = make_worker(max_answers)
        await worker.setup()
        worker.submit(requests)
        served: dict[str, object] = {}
        while len(served) < len(requests):
            served |= dict((await worker.take()).unpack())
        assert set(served) == {request.request_id for request in requests}
        return strategy.num_most

    assert asyncio.run(most(None)) == 60
    assert asyncio.run(most(4)) == 4
    assert asyncio.run(most(1)) == 3  # a group goes alone when it is larger than the limit


def test_states_move_in_a_thread_beside_the_event_loop() -> None:
    async def move() -> list[str]:
        worker, strategy = make_worker(None)
        await worker.setup()
        await worker.offload_states(ALL_STATES)
        await worker.load_states(ALL_STATES)
        return strategy.moves

    assert asyncio.run(move()) == ["offload", "load"]


def one_request(name: str) -> list[GenerationRequest]:
    return [GenerationRequest(name, np.array([7], np.int32), SamplingParams(3))]


def test_an_engine_that_hangs_is_given_up_with_its_requests_and_ended() -> None:
    settings = WorkerConfig.model_construct(backend_timeout=0.001)  # of a minute

    async def hang() -> None:
        worker, strategy = make_worker(None, settings)
        await worker.setup()
        await asyncio.sleep(0.15)  # twice as long as is allowed, but it answers
        await worker.check_health()
        strategy.mood = "hang"
        worker.submit(one_request("r"))
        finished = await asyncio.wait_for(worker.take(), 60)
        assert "no sign of life for 0.001 min (backend_timeout of actor_infer)" in str(finished.death)
        with pytest.raises(EngineDied, match="hangs"):
            await worker.check_health()
        await asyncio.wait_for(strategy.shut_down.wait(), 60)
        await asyncio.gather(*(task for mailbox in worker._mailboxes.values() for task in mailbox.tasks))
        late = await asyncio.wait_for(worker.take(), 60)
        assert [*finished.unpack(), *late.unpack()] == []  # no answer: the client asks another engine
        worker.submit(one_request("new"), "who does not know yet")
        assert (await asyncio.wait_for(worker.take("who does not know yet"), 60)).death == finished.death
        assert strategy.moves == ["shutdown"]

    asyncio.run(hang())


def test_a_call_to_an_engine_that_hangs_ends_when_it_is_given_up() -> None:
    settings = WorkerConfig.model_construct(backend_timeout=0.001)

    async def hang() -> None:
        worker, strategy = make_worker(None, settings)
        await worker.setup()
        strategy.mood = "hang"
        for _ in range(2):
            with pytest.raises(EngineDied, match="no sign of life"):
                await asyncio.wait_for(worker.pause(), 60)

    asyncio.run(hang())
