"""Engines behind one asynchronous function, on real Ray."""

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.rollout.engines import GenerateCluster
from roll.errors import StrategyError, WorkerError
from roll.types.rollout import Generation, GenerationRequest, SamplingParams

Start = Callable[..., Cluster]


def request(name: str, *prompt: int, num_samples: int = 1, new_tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(name, np.array(prompt, np.int32), SamplingParams(new_tokens), num_samples)


@pytest.fixture(scope="module")
def rollout(engines: Cluster) -> GenerateCluster:
    return GenerateCluster(engines)


def test_every_request_gets_its_own_answers(rollout: GenerateCluster) -> None:

    async def ask() -> list[list[Generation]]:
        asked = [request(f"r{i}", 5, 10 * i, num_samples=1 + i % 3, new_tokens=1 + i % 4) for i in range(40)]
        return await asyncio.gather(*(rollout.generate(r) for r in asked))

    for i, answers in enumerate(asyncio.run(ask())):
        assert len(answers) == 1 + i % 3
        for answer in answers:
            assert answer.is_here
            expected = np.arange(10 * i + 1, 10 * i + 2 + i % 4)
            np.testing.assert_array_equal(answer.token_ids, expected)
            np.testing.assert_array_equal(answer.log_probs, -expected.astype(np.float32))
            assert answer.finish_reason == "length"


def test_requests_of_one_tick_travel_in_one_call_per_engine(
    rollout: GenerateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    plain, take = rollout._call, rollout._take

    def counted(replica, method, *arguments):  # type: ignore[no-untyped-def]
        calls.append(method)
        return plain(replica, method, *arguments)

    def counted_take(replica):  # type: ignore[no-untyped-def]
        calls.append("take")
        return take(replica)

    monkeypatch.setattr(rollout, "_call", counted)
    monkeypatch.setattr(rollout, "_take", counted_take)

    async def ask() -> None:
        await asyncio.gather(*(rollout.generate(request(f"r{i}", i)) for i in range(100)))

    asyncio.run(ask())
    assert calls.count("submit") == 2
    assert 0 < calls.count("take") <= 6


def test_a_refused_request_fails_alone(rollout: GenerateCluster) -> None:

    async def ask() -> list[object]:
        asked = [request("good", 1), request("bad", 1000), request("fine", 2)]
        return await asyncio.gather(*(rollout.generate(r) for r in asked), return_exceptions=True)

    good, bad, fine = asyncio.run(ask())
    assert isinstance(good, list)
    assert isinstance(fine, list)
    assert isinstance(bad, StrategyError)
    assert "StrategyError: a prompt that starts with 1000" in str(bad)


def test_a_dying_engine_fails_what_waits_for_it_within_seconds(start: Start) -> None:
    rollout = GenerateCluster(start("actor_infer"))
    assert rollout.start_setup().result() == [1]

    async def ask() -> list[object]:
        asked = [request("waits", 1002), request("kills", 1001)]
        return await asyncio.gather(*(rollout.generate(r) for r in asked), return_exceptions=True)

    started = time.monotonic()
    for error in asyncio.run(ask()):
        assert isinstance(error, WorkerError)
        assert str(error).startswith("actor_infer rank 0 died in generate")
    assert time.monotonic() - started < 30
    with pytest.raises(WorkerError, match="actor_infer rank 0 died"):
        asyncio.run(rollout.generate(request("late", 1)))


def test_abort_ends_a_request_and_cancelling_aborts_it(rollout: GenerateCluster) -> None:

    async def ask() -> Generation:
        waiting = asyncio.create_task(rollout.generate(request("one", 1002, 7)))
        dropped = asyncio.create_task(rollout.generate(request("two", 1002, 7)))
        while sum(rollout.cluster.call_all("num_in_flight")) < 2:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        dropped.cancel()
        await asyncio.to_thread(rollout.abort, ["one"])
        (answer,) = await waiting
        assert answer.is_here
        return answer

    answer = asyncio.run(ask())
    assert (answer.finish_reason, list(answer.token_ids)) == ("abort", [8])
    assert [rollout._router.load(rank) for rank in (0, 1)] == [0, 0]
