"""An engine's process without Ray: how many answers are in flight, and what runs beside its event loop."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.strategy.base import State
from roll.distributed.weights.bucket import BucketSource, FileBucket
from roll.errors import EngineDied, StrategyError
from roll.types.rollout import Answered, Generation, GenerationRequest, SamplingParams
from tests.fakes import FakeGenerateStrategy
from tests.helpers.rollouts import here


class WatchedStrategy(FakeGenerateStrategy):
    """Counts the answers it is asked for at once. Its states move on the event loop, as in vLLM and SGLang, so a
    caller on the loop's own thread would wait for itself."""

    num_now = num_most = 0

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.shut_down = asyncio.Event()

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        if self.mood == "hang":
            await self.shut_down.wait()
            raise StrategyError("the rollout engine was shut down")
        self.num_now += request.num_samples
        self.num_most = max(self.num_most, self.num_now)
        try:
            return await super().generate(request, answered)
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

    async def join_weight_group(self, group: object, first_rank: int) -> None:
        await self.heartbeat()

    def shutdown(self) -> None:
        """Fails what is in flight, as an engine does that is ended."""
        self.moves.append("shutdown")
        self.loop.call_soon_threadsafe(self.shut_down.set)


def make_worker(max_answers: int | None, role: WorkerConfig | None = None) -> tuple[GenerateWorker, WatchedStrategy]:
    strategy = "tests.unit.distributed.executor.rollout.test_generate_worker:WatchedStrategy"
    blueprint = Blueprint("actor_infer", 0, 1, 0, 0, "cpu", strategy, role or WorkerConfig())
    worker = GenerateWorker(blueprint, max_answers)
    assert isinstance(worker.strategy, WatchedStrategy)
    return worker, worker.strategy


class LengthsStrategy(FakeGenerateStrategy):
    """Answer i of a group to prompt [.., n] is [n, i] and ends when it is told to."""

    async def start(self) -> None:
        self.ends: dict[tuple[int, int], asyncio.Event] = {}
        self.parts: dict[str, list[asyncio.Event]] = {}
        self.begun: list[tuple[int, int]] = []

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        assert answered is not None
        last = int(request.prompt_ids[-1])

        async def answer(index: int) -> Generation:
            event = self.ends[last, index] = asyncio.Event()
            self.parts.setdefault(request.request_id, []).append(event)
            self.begun.append((last, index))
            await event.wait()
            reason = "abort" if request.request_id in self.aborted else "stop"
            generation = Generation(np.array([last, index], np.int32), np.zeros(2, np.float32), NO_VERSIONS, reason)
            answered(index, generation)
            return generation

        return list(await asyncio.gather(*(answer(index) for index in request.samples)))

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await super().abort(request_ids)
        for event in [event for name in request_ids or () for event in self.parts.get(name, ())]:
            event.set()

    async def import_weights(self, source: BucketSource) -> None:
        assert source is NO_BYTES


NO_VERSIONS = np.zeros(2, np.int32)
NO_BYTES = FileBucket(Path())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def worker_of_lengths(max_answers: int) -> tuple[GenerateWorker, LengthsStrategy]:
    strategy = "tests.unit.distributed.executor.rollout.test_generate_worker:LengthsStrategy"
    worker = GenerateWorker(Blueprint("actor_infer", 0, 1, 0, 0, "cpu", strategy, WorkerConfig()), max_answers)
    assert isinstance(worker.strategy, LengthsStrategy)
    await worker.setup()
    return worker, worker.strategy


def group_of(prompt: int, num_samples: int, order: int = 0) -> GenerationRequest:
    return GenerationRequest(f"r{prompt}", np.array([prompt], np.int32), SamplingParams(3), num_samples, order=order)


def test_an_answer_that_ends_gives_its_slot_to_the_next_one_at_once() -> None:
    """4 slots, groups of 4, 2 and 1: while answer 3 of the first group goes on, all the others are begun."""

    async def play() -> dict[str, list[list[int]]]:
        worker, engine = await worker_of_lengths(4)
        worker.submit([group_of(10, 4, order=1), group_of(20, 2, order=3), group_of(30, 1, order=2)])
        await settle()
        assert engine.begun == [(10, 0), (10, 1), (10, 2), (10, 3)]
        engine.ends[10, 1].set()
        await settle()
        assert engine.begun[4:] == [(30, 0)]  # of the smaller order
        engine.ends[10, 0].set()
        await settle()
        assert engine.begun[5:] == [(20, 0)]
        engine.ends[30, 0].set()
        await settle()
        assert engine.begun[6:] == [(20, 1)]
        for event in engine.ends.values():
            event.set()
        answers: dict[str, list[list[int]]] = {}
        while len(answers) < 3:
            for name, result in (await worker.take()).unpack():
                assert not isinstance(result, str)
                answers[name] = [here(answer).token_ids.tolist() for answer in result.values()]
        return answers

    assert asyncio.run(play()) == {
        "r10": [[10, 0], [10, 1], [10, 2], [10, 3]],
        "r20": [[20, 0], [20, 1]],
        "r30": [[30, 0]],
    }


def test_an_aborted_request_ends_with_what_it_has_and_begins_nothing_more() -> None:
    async def play() -> None:
        worker, engine = await worker_of_lengths(3)
        worker.submit([group_of(10, 2), group_of(20, 3), group_of(30, 1)])
        await settle()
        engine.ends[10, 0].set()
        await settle()
        assert engine.begun == [(10, 0), (10, 1), (20, 0), (20, 1)]
        await worker.abort(["r20"])
        ((name, answers),) = (await worker.take()).unpack()
        assert name == "r20" and not isinstance(answers, str)
        assert [(answer.finish_reason, answer.num_tokens) for answer in answers.values()] == [("abort", 2)] * 2 + [
            ("abort", 0)
        ]

    asyncio.run(play())


async def taken(worker: GenerateWorker, num_answers: int) -> list[tuple[str, int]]:
    """The requests and numbers of the next answers, in however many takes they come."""
    found: list[tuple[str, int]] = []
    while len(found) < num_answers:
        for name, result in (await asyncio.wait_for(worker.take(), 60)).unpack():
            assert not isinstance(result, str)
            found += [(name, number) for number in result]
    return sorted(found)


def test_of_a_request_that_tells_each_an_answer_is_taken_while_others_are_sampled_and_once() -> None:
    async def play() -> None:
        worker, engine = await worker_of_lengths(2)
        worker.submit([replace(group_of(10, 3), tells_each=True)])
        await settle()
        engine.ends[10, 1].set()
        assert await taken(worker, 1) == [("r10", 1)]
        engine.ends[10, 0].set()
        worker.submit([group_of(20, 2)])
        await settle()
        engine.ends[10, 2].set()
        assert await taken(worker, 2) == [("r10", 0), ("r10", 2)]
        await settle()
        engine.ends[20, 0].set()
        await settle()
        engine.ends[20, 1].set()
        ((name, answers),) = (await asyncio.wait_for(worker.take(), 60)).unpack()
        assert name == "r20" and list(answers) == [0, 1], "at once, as it is not to tell each"

    asyncio.run(play())


def test_when_enough_answers_are_whole_the_others_are_cut_and_their_slots_are_free() -> None:
    """3 slots for 5 answers of which 2 are enough: answer 3 is under way when they are there, and 4 never begins."""

    async def play() -> None:
        worker, engine = await worker_of_lengths(3)
        worker.submit([replace(group_of(10, 5), enough=2), group_of(20, 3)])
        await settle()
        engine.ends[10, 1].set()
        await settle()
        engine.ends[10, 0].set()
        ((_, answers),) = (await asyncio.wait_for(worker.take(), 60)).unpack()
        assert not isinstance(answers, str)
        reasons = {number: (answer.finish_reason, answer.num_tokens) for number, answer in answers.items()}
        assert reasons.pop(4) == ("abort", 0)
        assert reasons == {0: ("stop", 2), 1: ("stop", 2), 2: ("abort", 2), 3: ("abort", 2)}
        await settle()
        assert sorted(pair for pair in engine.begun if pair[0] == 20) == [(20, 0), (20, 1), (20, 2)]

    asyncio.run(play())


def one_request(name: str) -> list[GenerationRequest]:
    return [GenerationRequest(name, np.array([7], np.int32), SamplingParams(3))]


def test_an_engine_that_hangs_is_given_up_with_its_requests_and_ended() -> None:
    settings = WorkerConfig.model_construct(backend_timeout=0.001, model_args=ModelArgs())  # of a minute

    async def hang() -> None:
        worker, strategy = make_worker(None, settings)
        await worker.setup()
        await asyncio.sleep(0.15)  # twice as long as is allowed, but it answers
        await worker.check_health()
        strategy.mood = "hang"
        worker.submit(one_request("r"))
        finished = await asyncio.wait_for(worker.take(), 60)
        assert "no sign of life for 0.001 min (backend_timeout of actor_infer)" in str(finished.gone)
        with pytest.raises(EngineDied, match="hangs"):
            await worker.check_health()
        await asyncio.wait_for(strategy.shut_down.wait(), 60)
        await asyncio.gather(*(task for mailbox in worker._mailboxes.values() for task in mailbox.tasks))
        late = await asyncio.wait_for(worker.take(), 60)
        assert [*finished.unpack(), *late.unpack()] == []  # no answer: the client asks another engine
        worker.submit(one_request("new"), "who does not know yet")
        assert (await asyncio.wait_for(worker.take("who does not know yet"), 60)).gone == finished.gone
        assert strategy.moves == ["shutdown"]

    asyncio.run(hang())


def test_an_engine_without_weights_refuses_an_update_of_some_of_them() -> None:
    async def play() -> None:
        worker, _ = await worker_of_lengths(max_answers=1)
        with pytest.raises(StrategyError, match="an engine that has not received all weights yet"):
            await worker.receive_weights(NO_BYTES, is_first=True, version=1, whole=False)
        assert await worker.receive_weights(NO_BYTES, is_first=True, version=1) == 1
        assert await worker.receive_weights(NO_BYTES, is_first=True, version=2, whole=False) == 2
        await worker.receive_weights(NO_BYTES, is_first=True, version=None)
        with pytest.raises(StrategyError, match="an engine that has not received all weights yet"):
            await worker.receive_weights(NO_BYTES, is_first=True, version=3, whole=False)  # the last one broke off

    asyncio.run(play())


def test_who_waits_for_an_engine_whose_setup_fails_is_told_at_once_or_when_it_asks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told() -> None:
        worker, strategy = make_worker(None)
        waiting = asyncio.ensure_future(worker.wait_serving())
        await asyncio.sleep(0)

        async def fails() -> None:
            raise StrategyError("no such model")

        monkeypatch.setattr(strategy, "start", fails)
        with pytest.raises(StrategyError, match="no such model"):
            await worker.setup()
        for waits in (waiting, worker.wait_serving()):
            with pytest.raises(EngineDied, match="no such model"):
                await asyncio.wait_for(waits, 60)

    asyncio.run(told())
