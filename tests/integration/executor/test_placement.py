"""Turns on shared devices, recorded by the fakes themselves."""

import pytest

from roll.distributed.executor.placement import Claim, Placement
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.strategy.base import State

ALL = "gradients kv_cache optimizer weights"
WEIGHTS = frozenset({State.WEIGHTS})


def moves_of(cluster: Cluster) -> list[str]:
    """What the first worker was told since the last look."""
    return cluster.call_all("take_moves")[0]


def set_up(*clusters: Cluster, one_by_one: bool) -> Placement:
    placement = Placement(clusters)
    setups = {cluster: lambda cluster=cluster: cluster.start_all("setup") for cluster in clusters}
    placement.start_setup(setups, one_by_one)
    placement.finish_setup()
    return placement


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
