"""Two fake engines, of which one dies in the middle of its work, on real Ray."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from ray.exceptions import RayActorError

from roll.distributed.executor.placement import Claim, Occupant, Placement
from roll.distributed.executor.processes.cluster import Calls, Cluster
from roll.distributed.executor.rollout import engines as engine_recovery
from roll.distributed.executor.rollout.engines import (
    MAX_RESTARTS,
    ApartCluster,
    EngineRecovery,
    GenerateCluster,
    RecoverySettings,
)
from roll.distributed.executor.weights.sender import EngineRoute, Route, SendPlan
from roll.distributed.executor.weights.sync import WeightSync
from roll.distributed.strategy.base import State
from roll.errors import WorkerError
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.helpers.processes import shared_segments
from tests.helpers.rollouts import here

Start = Callable[..., Cluster]
WEIGHTS = frozenset({State.WEIGHTS})
Pair = Callable[..., GenerateCluster]


def request(name: str, *prompt: int) -> GenerationRequest:
    return GenerationRequest(name, np.array(prompt, np.int32), SamplingParams(3))


@pytest.fixture
def pair_of_engines(start: Start) -> Iterator[Pair]:
    recoveries: list[EngineRecovery] = []

    def pair(devices: tuple[int, int] = (3, 4), num_ranks: int = 1) -> GenerateCluster:
        cluster = start("actor_infer", devices=devices, max_restarts=MAX_RESTARTS, num_ranks=num_ranks)
        cluster.call_all("setup")
        arguments = [(*arguments, None, True) for arguments in cluster.spec.arguments]
        recoveries.append(EngineRecovery(cluster, RecoverySettings(cluster.spec.worker_class, arguments)))
        return GenerateCluster(cluster, recoveries[-1])

    yield pair
    for recovery in recoveries:
        recovery.close()
        recovery.join()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("route", ["memory", "broadcast"])
def test_a_dead_engines_requests_go_to_the_other_and_it_comes_back_with_the_next_weights(
    route: Route, pair_of_engines: Pair, trainer: Cluster
) -> None:
    rollout = pair_of_engines()
    engines = rollout.cluster
    sync = WeightSync(trainer, engines, 1 << 20, SendPlan((EngineRoute(route, (0,)),) * 2))
    sync.publish(1)
    assert rollout.heal() is False

    async def play() -> None:
        waiting = [asyncio.create_task(rollout.generate(request(f"w{i}", 1002, i, 7))) for i in range(8)]
        await until(lambda: [rollout._router.load(rank) for rank in (0, 1)] == [4, 4])
        await until(lambda: engines.call_all("num_in_flight") == [4, 4])
        os.kill(engines.call_all("process_id")[0], signal.SIGKILL)
        await until(lambda: rollout.num_retries == 4)
        assert [rollout._router.load(rank) for rank in (0, 1)] == [0, 8]
        await until(lambda: engines.workers.start("num_in_flight", {1: ()}).result() == [8])
        await asyncio.to_thread(rollout.abort)
        for (answer,) in await asyncio.gather(*waiting):
            assert (answer.finish_reason, list(here(answer).token_ids)) == ("abort", [8])
        late = await rollout.generate(request("late", 5))
        assert list(here(late[0]).policy_versions) == [1, 1, 1]

        assert await asyncio.to_thread(rollout.heal) is True
        sync.renew()
        await asyncio.to_thread(sync.publish, 2)
        await until(lambda: rollout._replicas[0].failure is None)
        answers = await asyncio.gather(*(rollout.generate(request(f"n{i}", 5)) for i in range(4)))
        assert [list(here(answer).policy_versions) for (answer,) in answers] == [[2, 2, 2]] * 4

    asyncio.run(play())
    value = trainer.call_all("weight_value")[0]
    assert engines.call_all("weight_sums") == [{"a": 5 * value, "b": 400 * value, "version": 2}] * 2
    assert rollout.metrics() == {"rollout/restarted_engines": 1.0, "rollout/retried_requests": 4.0}
    assert rollout.heal() is False


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["die on leaving", "die on return"])
@pytest.mark.parametrize("is_tenant", [False, True], ids=["stands still", "hands over"])
def test_an_engine_that_dies_of_a_turn_on_shared_devices_is_replaced(
    mood: str, is_tenant: bool, pair_of_engines: Pair, trainer: Cluster
) -> None:
    rollout = pair_of_engines(devices=(1, 4))
    engines = rollout.cluster
    placement = Placement((trainer, rollout), [rollout] if is_tenant else [])
    for occupant in (trainer, rollout):
        placement.join(occupant)
    engines.workers.start("set_mood", {0: (mood,)}).result()
    with placement.reserved(Claim(trainer)):
        with placement.hold(Claim(trainer)):
            pass
        if mood == "die on leaving":
            assert rollout.heal() is True
        with placement.hold(Claim(trainer, WEIGHTS), Claim(rollout, WEIGHTS)):
            assert rollout.heal() is (mood == "die on return")
            WeightSync(trainer, engines, 1 << 20, SendPlan((EngineRoute("memory", (0,)),) * 2)).publish(1)
    with placement.hold(Claim(rollout)):
        assert [sums["version"] for sums in engines.call_all("weight_sums")] == [1, 1]
    assert rollout.metrics()["rollout/restarted_engines"] == 1

    async def ask() -> list[int]:
        asked = (rollout.generate(request(f"r{i}", i)) for i in range(4))
        answers = await asyncio.wait_for(asyncio.gather(*asked), 120)
        return [here(answer).num_tokens for (answer,) in answers]

    assert asyncio.run(ask()) == [3] * 4


@pytest.mark.slow
def test_an_engine_that_died_unnoticed_lets_nobody_wait(pair_of_engines: Pair, trainer: Cluster) -> None:
    """Neither who asks it nor who needs its device; it comes back with its states on the device."""
    rollout = pair_of_engines(devices=(0, 1))
    recovery, engines = rollout.recovery, rollout.cluster
    assert recovery is not None
    os.kill(engines.call_all("process_id")[1], signal.SIGKILL)
    new_process = engines.workers.handles[1]

    async def replaced() -> bool:
        try:
            return not await new_process.is_built.remote()
        except RayActorError:
            return False

    async def ask(name: str) -> int:
        """Of a process that sampled nothing when the engine died. Returns how often it asked again."""
        client = rollout.client(name)
        asked = (client.generate(request(f"r{i}", i)) for i in range(4))
        for i, (answer,) in enumerate(await asyncio.wait_for(asyncio.gather(*asked), 120)):
            assert list(here(answer).token_ids) == [i + 1, i + 2, i + 3]
        return client.num_retries

    async def play(name: str) -> int:
        while not await replaced():
            await asyncio.sleep(0.1)
        return await ask(name)

    assert asyncio.run(play("environments-0")) == 2
    rollout.abort()
    assert recovery.in_flight() == {1}

    placement = Placement((trainer, rollout))
    setups: dict[Occupant, Callable[[], Calls]] = {
        occupant: lambda cluster=cluster: cluster.workers.start("take_moves", {0: ()})
        for occupant, cluster in ((trainer, trainer), (rollout, engines))
    }
    placement.start_setup(setups, one_by_one=False)
    placement.finish_setup()
    with placement.hold(Claim(trainer)):
        pass
    assert rollout.heal() is True
    assert [len(moves) for moves in engines.call_all("take_moves")] == [1, 0]
    with placement.hold(Claim(rollout)):
        pass
    assert [len(moves) for moves in engines.call_all("take_moves")] == [1, 1]
    trainer.call_all("take_moves")
    assert asyncio.run(ask("environments-1")) == 2  # it has no weights yet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ways", "mood"),
    [
        ((EngineRoute("broadcast", (0,)), EngineRoute("broadcast", (0,))), "die"),
        ((EngineRoute("memory", (0, 1)), EngineRoute("memory", (1, 0))), "die midway"),
    ],
    ids=["broadcast", "every rank to its own"],
)
def test_weights_are_sent_again_when_an_engine_dies_while_they_are_sent(
    ways: tuple[EngineRoute, ...], mood: str, pair_of_engines: Pair, trainer: Cluster
) -> None:
    rollout = pair_of_engines(num_ranks=len(ways[0].senders))
    sync = WeightSync(trainer, rollout.cluster, 64, SendPlan(ways))
    rollout.cluster.call_ranks("set_mood", [("",), (mood,)])
    sync.publish_healing(4, rollout.heal)
    assert rollout.recovery is not None and rollout.recovery.num_restarts == 1
    assert rollout.cluster.call_all("weight_senders") == [list(way.senders) for way in ways]
    assert not shared_segments(trainer.call_all("process_id"))
    value = trainer.call_all("weight_value")[0]
    assert rollout.cluster.call_all("weight_sums") == [{"a": 5 * value, "b": 400 * value, "version": 4}] * 2

    rollout.cluster.call_ranks("set_mood", [("",), ("refuse",)])
    with pytest.raises(WorkerError, match="rank 1 failed in receive_weights: StrategyError: no update today"):
        sync.publish_healing(5, rollout.heal)


@pytest.mark.slow
def test_a_request_that_kills_every_engine_ends_with_the_cause(pair_of_engines: Pair) -> None:
    rollout = pair_of_engines()

    async def ask() -> object:
        (result,) = await asyncio.gather(rollout.generate(request("kills", 1001)), return_exceptions=True)
        return result

    error = asyncio.run(ask())
    assert isinstance(error, WorkerError)
    assert "died in generate" in str(error)
    assert rollout.num_retries == 1


@pytest.mark.slow
def test_an_only_engine_that_stands_apart_is_replaced_and_its_requests_wait_for_the_new_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start("actor_infer", devices=(3,), max_restarts=1)
    cluster.call_all("setup")
    arguments = [(*arguments, None, False) for arguments in cluster.spec.arguments]
    recovery = EngineRecovery(cluster, RecoverySettings(cluster.spec.worker_class, arguments, waits_for_weights=False))
    judge = ApartCluster(cluster, recovery, waits=True)

    async def play() -> None:
        asked = asyncio.create_task(judge.generate(request("first", 1002)))  # which this engine answers never
        await until(lambda: judge._router.load(0) == 1)
        os.kill(cluster.call_all("process_id")[0], signal.SIGKILL)
        await until(lambda: judge.num_retries == 1)
        late = asyncio.create_task(judge.generate(request("late", 5)))
        (answer,) = await asyncio.wait_for(late, 300)
        assert list(here(answer).token_ids) == [6, 7, 8]
        assert recovery.in_flight() == frozenset() and recovery.num_restarts == 1
        asked.cancel()

        monkeypatch.setattr(engine_recovery, "_NEW_PROCESS_LIMIT_S", 1.0)  # nobody may start one
        os.kill(cluster.call_all("process_id")[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"the limit per engine is 3"):
            await asyncio.wait_for(judge.generate(request("last", 5)), 300)

    try:
        asyncio.run(play())
    finally:
        recovery.close()
        cluster.kill()
        recovery.join()
