"""Workers of one role on real Ray: calls, environments, and how a failure is reported."""

import subprocess
import time
from collections.abc import Callable

import pytest
import ray
from ray.util.placement_group import placement_group_table

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.distributed.executor.processes.worker_records import RecordReader
from roll.errors import ResourceError, WorkerError

TOY = "tests.toys:ToyWorker"
Start = Callable[..., Cluster]


def test_replies_come_in_rank_order_and_calls_have_limits(toys: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toys.call_ranks("add", [(1, 2), (3, 4)]) == [3, 7]
    assert toys.call_all("add", 5, 6) == [11, 11]
    assert toys.call_all("count") == [2, 2]
    # Ray can be told to reap orphans, but then every subprocess of everybody seems to succeed.
    assert toys.call_all("exit_code_of_a_child", 3) == [3, 3]
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
    toys.call_all("sleep", 0.0)  # the limit is not on how long workers take to start
    calls = toys.start_ranks("sleep", [(0.0,), (3.0,)])
    ray.wait([calls.refs[0]])
    with pytest.raises(WorkerError, match="no reply within 1 s from actor_train rank 1: sleep"):
        calls.result(timeout_s=1)
    monkeypatch.setattr(toys.workers, "timeout_s", 0.5)
    with pytest.raises(WorkerError, match="no reply within 0.5 s from actor_train rank 0: sleep"):
        toys.call_all("sleep", 5.0)


def test_ranks_see_their_place_and_their_own_environment(toys: Cluster) -> None:
    first, second = toys.call_all("environment")
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    for environment in (first, second):
        assert environment["WORLD_SIZE"] == "2"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert environment["MY_SETTING"] == "x"


def test_records_of_workers_reach_the_log_of_the_driver_once(
    toys: Cluster, runtime: RayRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """Of roll alone, without secrets, also those of lines that say much."""
    toys.call_all("log", "roll.toys", "the prefix is broken: --token abcdef", 50)
    toys.call_all("log", "roll.toys", "all is well", 1)
    toys.call_all("log", "another.library", "a storm", 1)
    with caplog.at_level("INFO"):
        RecordReader(runtime).close()
    said = [(record.name, record.getMessage()) for record in caplog.records if "]" in record.getMessage()]
    assert [(name, text.partition("] ")[2]) for name, text in said] == [
        ("roll.toys", "the prefix is broken: --token *** (0)"), ("roll.toys", "all is well (0)"),
    ]  # fmt: skip
    assert all(text.startswith("[actor_train-") for _, text in said)


def test_a_rank_that_raises_or_dies_ends_the_call_while_the_others_wait_in_a_collective(start: Start) -> None:
    cluster = start("actor_train", devices=(0, 1), worker_class=TOY)
    cluster.wait_ready()
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        cluster.call_all("fail_on_rank", 1)
    assert str(caught.value).startswith("actor_train rank 1 failed in fail_on_rank: ValueError: the root cause")
    assert "in fail_on_rank" in caught.value.__notes__[0]
    assert time.monotonic() - started < 30
    cluster.kill()

    cluster = start("actor_train", devices=(0, 1), worker_class=TOY)
    cluster.wait_ready()
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        cluster.call_all("die_on_rank", 1)
    assert str(caught.value).startswith("actor_train rank 1 died in die_on_rank")
    assert time.monotonic() - started < 30
    with pytest.raises(WorkerError, match="actor_train rank 1 died in add"):
        cluster.call_all("add", 1, 1)


def test_a_worker_that_cannot_be_constructed_says_why(start: Start) -> None:
    cluster = start("reference", worker_class="tests.toys:BrokenWorker")
    with pytest.raises(WorkerError, match="reference rank 0 failed in start: RuntimeError: no such model"):
        cluster.wait_ready()


def test_seats_are_given_and_released(resources: ResourceManager) -> None:
    with pytest.raises(ResourceError, match="num_nodes: 2 with num_gpus_per_node: 8 need more than the cluster has"):
        ResourceManager(num_nodes=2, num_gpus_per_node=8)
    more = ResourceManager(num_nodes=1, num_gpus_per_node=2)
    for _ in range(2):
        more.release()
        assert placement_group_table(more._group)["state"] == "REMOVED"
    cpu = resources.slots(RolePlace("rewards", (WorkerSlot(0), WorkerSlot(1, local_rank=1))))
    assert [(seat.rank, seat.local_rank, seat.devices) for seat in cpu] == [(0, 0, ()), (1, 1, ())]
    pair = resources.slots(RolePlace("actor_infer", (WorkerSlot(0, 0, 0, (4, 5), (4, 5)),)))
    assert (pair[0].devices, pair[0].gpu_ids) == ((4, 5), ())
