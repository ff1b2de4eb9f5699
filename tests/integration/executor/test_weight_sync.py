"""Weights from a fake trainer (2 ranks) to two fake engines, on every route, over real Ray."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.weights.sender import EngineRoute, SendPlan
from roll.distributed.executor.weights.sync import WeightSync, plan_send
from roll.errors import WorkerError
from tests.helpers.processes import shared_segments

Start = Callable[..., Cluster]
BUCKET_BYTES = {"one bucket": 1 << 20, "one tensor per bucket": 64}


@pytest.mark.parametrize("buckets", BUCKET_BYTES)
@pytest.mark.parametrize("route", ["auto", "memory", "broadcast", "file"])
def test_engines_hold_the_trainers_weights_after_publish(
    route: Literal["auto", "memory", "broadcast", "file"],
    buckets: str,
    trainer: Cluster,
    engines: Cluster,
    tmp_path: Path,
) -> None:
    plan = plan_send(trainer.slots, 0, engines.slots, (1, 1), route, tmp_path)
    assert {way.route for way in plan.ways} == {"memory" if route == "auto" else route}
    sync = WeightSync(trainer, engines, BUCKET_BYTES[buckets], plan)
    for version in (3, 4):
        sync.publish(version)
        value = trainer.call_all("weight_value")[0]
        for weights in engines.call_all("weight_sums"):
            assert weights == {"a": 5 * value, "b": 400 * value, "version": version}
    assert not shared_segments(trainer.call_all("process_id"))
    assert not list(tmp_path.glob("*/bucket*"))


def test_what_training_does_not_change_goes_to_engines_once_and_to_new_ones_again(
    trainer: Cluster, engines: Cluster
) -> None:
    """Of 5 numbers of 2 bytes that are trained, 400 of 4 that are not, and one of 8 that says who sent them."""
    sync = WeightSync(trainer, engines, 1 << 20, SendPlan((EngineRoute("memory", (0,)),) * 2))
    sent = []
    for version in range(1, 6):
        if version == 4:
            sync.renew()  # an engine was restarted
        sync.publish(version)
        sent.append(sync.sent_bytes)
        value = trainer.call_all("weight_value")[0]
        assert engines.call_all("weight_sums") == [{"a": 5 * value, "b": 400 * value, "version": version}] * 2
    assert sent == [1618, 18, 18, 1618, 18]


@pytest.mark.parametrize("route", ["memory", "broadcast"])
def test_an_engine_that_refuses_ends_the_publish_and_leaves_nothing_behind(
    route: Literal["memory", "broadcast"], trainer: Cluster, engines: Cluster
) -> None:
    """Over broadcast, the sender does not wait for a receiver that takes no part."""
    sync = WeightSync(trainer, engines, 1 << 20, SendPlan((EngineRoute(route, (0,)),) * 2))
    engines.call_ranks("set_mood", [("",), ("refuse",)])
    with pytest.raises(
        WorkerError, match="^actor_infer rank 1 failed in receive_weights: StrategyError: no update today"
    ):
        sync.publish(1)
    assert not shared_segments(trainer.call_all("process_id"))
    engines.call_all("set_mood", "")
    sync.publish(2)
    assert [sums["version"] for sums in engines.call_all("weight_sums")] == [2, 2]


def test_an_engine_that_dies_does_not_leave_the_sender_hanging(trainer: Cluster, start: Start) -> None:
    pair = start("actor_infer", devices=(3, 4))
    pair.call_all("setup")
    pair.call_ranks("set_mood", [("",), ("die",)])
    sync = WeightSync(trainer, pair, 1 << 20, SendPlan((EngineRoute("broadcast", (0,)),) * 2))
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        sync.publish(1)
    assert str(caught.value).startswith("actor_infer rank 1 died in receive_weights")
    assert time.monotonic() - started < 30
