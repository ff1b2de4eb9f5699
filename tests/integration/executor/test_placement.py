"""Turns on shared devices, recorded by the fakes themselves."""

import asyncio
from collections.abc import Callable

import pytest

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.placement import Claim, Occupant, Placement
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.cluster import Calls, Cluster
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.distributed.strategy.base import State

ALL = "gradients kv_cache optimizer weights"
WEIGHTS = frozenset({State.WEIGHTS})


def moves_of(cluster: Cluster) -> list[str]:
    """What the first worker was told since the last look."""
    return cluster.call_all("take_moves")[0]


def set_up(*clusters: Cluster, one_by_one: bool) -> Placement:
    placement = Placement(clusters)
    setups: dict[Occupant, Callable[[], Calls]] = {c: lambda c=c: c.start_all("setup") for c in clusters}
    placement.start_setup(setups, one_by_one)
    placement.finish_setup()
    return placement


@pytest.mark.slow
def test_clusters_on_shared_devices_take_turns(
    trainer: Cluster, engines: Cluster, critic: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = engines, critic
    placement = set_up(trainer, engine, other, one_by_one=True)
    assert moves_of(trainer) == moves_of(engine) == [f"offload {ALL}"]

    with placement.hold(Claim(engine)):
        pass
    assert (moves_of(trainer), moves_of(engine)) == ([], [f"load {ALL}"])
    with placement.hold(Claim(engine)), placement.hold(Claim(other)):
        pass
    assert (moves_of(trainer), moves_of(engine)) == ([], [])

    with placement.hold(Claim(trainer)):
        pass
    assert (moves_of(trainer), moves_of(engine)) == ([f"load {ALL}"], [f"offload {ALL}"])
    with placement.hold(Claim(trainer, WEIGHTS), Claim(engine, WEIGHTS)):
        pass
    assert moves_of(trainer) == ["offload gradients kv_cache optimizer"]
    assert moves_of(engine) == ["load weights"]
    with placement.hold(Claim(engine)):
        pass
    assert moves_of(trainer) == ["offload weights"]
    assert moves_of(engine) == ["load gradients kv_cache optimizer"]

    monkeypatch.setattr(other, "start_all", None)  # disjoint devices: nobody is called
    with placement.hold(Claim(other), Claim(engine)):
        pass


@pytest.mark.slow
def test_a_pool_on_a_device_takes_turns_with_a_cluster(
    trainer: Cluster, critic: Cluster, resources: ResourceManager
) -> None:
    place = RolePlace("rewards.math", (WorkerSlot(0, 0, 0, (1,), (1,)),))
    pool = TaskPool("rewards.math", resources, place, "tests.fakes:MovingWorker")
    try:
        assert pool.devices == {1}
        placement = set_up(trainer, critic, one_by_one=False)
        placement.join(pool)
        pool.wait_ready()
        moves_of(trainer)
        told = []
        for claim in (Claim(pool), Claim(trainer), Claim(critic), Claim(pool)):
            with placement.hold(claim):
                told.append((asyncio.run(pool.call("take_moves", timeout_s=60)), moves_of(trainer)))
        assert told == [
            ([], [f"offload {ALL}"]),
            ([f"offload {ALL}"], [f"load {ALL}"]),
            ([], []),
            ([f"load {ALL}"], [f"offload {ALL}"]),
        ]
    finally:
        pool.kill()
