"""An engine's process without Ray: how many answers are in flight, and what runs beside its event loop."""

import asyncio
import threading

import numpy as np
import pytest

from roll.configs.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.infer_worker import InferWorker
from roll.distributed.strategy.base import ALL_STATES, State
from roll.errors import EngineDied
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.fakes import FakeInferStrategy


class WatchedStrategy(FakeInferStrategy):
    """Counts the answers it is asked for at once. Its states move on the event loop, as in vLLM and SGLang, so a
    caller on the loop's own thread would wait for itself."""

    num_now = num_most = 0

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
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

    def shutdown(self) -> None:
        self.moves.append("shutdown")


def make_worker(max_answers: int | None, role: WorkerConfig | None = None) -> tuple[InferWorker, WatchedStrategy]:
    strategy = "tests.unit.executor.test_infer_worker:WatchedStrategy"
    blueprint = Blueprint("actor_infer", 0, 1, 0, 0, "cpu", strategy, role or WorkerConfig())
    worker = InferWorker(blueprint, max_answers)
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


def test_an_engine_that_hangs_is_given_up_with_its_requests_and_ended() -> None:
    settings = WorkerConfig.model_construct(backend_timeout=0.001)  # of a minute

    async def hang() -> tuple[str | None, list[str]]:
        worker, strategy = make_worker(None, settings)
        await worker.setup()
        await asyncio.sleep(0.15)  # twice as long as is allowed, but it answers
        await worker.check_health()
        strategy.mood = "hang"
        worker.submit([GenerationRequest("r", np.array([1002], np.int32), SamplingParams(3), 1)])
        finished = await asyncio.wait_for(worker.take(), 5)
        while not strategy.moves:  # the engine is ended in a thread
            await asyncio.sleep(0.01)
        assert finished.request_ids == ()
        with pytest.raises(EngineDied, match="hangs"):
            await worker.check_health()
        return finished.death, strategy.moves

    death, moves = asyncio.run(hang())
    assert "no sign of life for 0.001 min (backend_timeout of actor_infer)" in str(death)
    assert moves == ["shutdown"]
