import stat
from pathlib import Path

import pytest
import torch

from roll.distributed.executor.resource_manager import Node, Seat
from roll.distributed.executor.weight_lanes import FileLane
from roll.distributed.executor.weight_routes import choose_route, plan_send
from roll.distributed.strategy.weights import FileBucket, index_bucket
from roll.errors import ConfigError

LAPTOP = Node(0, "127.0.0.1", ())
GPUS, OTHER_GPUS = Node(0, "10.0.0.1", ("0", "1", "2", "3")), Node(1, "10.0.0.2", ("0", "1", "2", "3"))


def on(node: Node, *gpu_ids: str, rank: int = 0) -> Seat:
    return Seat(rank, 0, node, (), gpu_ids)


def trainers(node: Node, *gpu_ids: str) -> list[Seat]:
    return [on(node, gpu, rank=rank) for rank, gpu in enumerate(gpu_ids)]


FOUR = trainers(GPUS, "0", "1", "2", "3")
TWO = trainers(GPUS, "0", "1")
BOTH_NODES = [*FOUR, *trainers(OTHER_GPUS, "0", "1", "2", "3")]


@pytest.mark.parametrize(
    ("ranks", "engines", "routes", "backend"),
    [
        ([on(LAPTOP)], [on(LAPTOP), on(LAPTOP)], "memory memory", "gloo"),
        (FOUR[:1], [on(GPUS, "0")], "cuda_ipc", "nccl"),
        (FOUR, [on(GPUS, gpu) for gpu in "0123"], "cuda_ipc memory memory memory", "nccl"),
        (FOUR, [on(GPUS, "0", "1"), on(GPUS, "2", "3")], "memory memory", "nccl"),
        (FOUR, [on(GPUS, "0", "1", "2", "3")], "memory", "nccl"),
        (TWO, [on(GPUS, "2"), on(GPUS, "3")], "broadcast broadcast", "nccl"),
        (TWO, [on(GPUS, "2", "3")], "broadcast", "nccl"),
        (TWO, [on(GPUS, "1", "2"), on(GPUS, "3")], "memory broadcast", "nccl"),
        (TWO, [on(OTHER_GPUS, "0"), on(OTHER_GPUS, "1")], "broadcast broadcast", "nccl"),
        (BOTH_NODES, [on(GPUS, "0"), on(GPUS, "1"), on(OTHER_GPUS, "0")], "cuda_ipc memory broadcast", "nccl"),
        (BOTH_NODES, [on(GPUS, "0", "1"), on(OTHER_GPUS, "0", "1")], "memory broadcast", "nccl"),
    ],
    ids=[
        "laptop",
        "one-gpu",
        "colocated",
        "colocated-tp2",
        "colocated-tp4",
        "disjoint",
        "disjoint-tp2",
        "partly-shared",
        "two-nodes-disjoint",
        "two-nodes-colocated",
        "two-nodes-colocated-tp2",
    ],
)
def test_the_route_follows_from_the_placement(ranks: list[Seat], engines: list[Seat], routes: str, backend: str):
    plan = plan_send(ranks, 0, engines, [1] * len(engines), "auto", None)
    assert (" ".join(plan.routes), plan.backend) == (routes, backend)


def test_memory_on_gpus_means_ipc_on_one_and_shared_memory_between_two():
    assert choose_route(on(GPUS, "0"), on(GPUS, "0"), "memory", FOUR) == "cuda_ipc"
    assert choose_route(on(GPUS, "0"), on(GPUS, "1"), "memory", FOUR) == "memory"


def test_memory_between_hosts_is_refused():
    with pytest.raises(ConfigError, match="weight_sync_route: memory needs one host.*10.0.0.1.*10.0.0.2"):
        choose_route(on(GPUS, "0"), on(OTHER_GPUS, "0"), "memory", FOUR)


def test_a_broadcast_that_is_asked_for_takes_nccl_between_distinct_gpus_only():
    disjoint = plan_send(FOUR[:1], 0, [on(GPUS, "1"), on(OTHER_GPUS, "0")], (1, 1), "broadcast", None)
    assert (disjoint.routes, disjoint.backend) == (("broadcast", "broadcast"), "nccl")
    assert disjoint.address == "10.0.0.1"
    overlapping = plan_send(FOUR[:1], 0, [on(GPUS, "0", "1")], (2,), "broadcast", None)
    assert (overlapping.routes, overlapping.backend) == (("broadcast",), "gloo")


def test_a_laptop_broadcasts_over_gloo_on_loopback():
    plan = plan_send([on(LAPTOP)], 0, [on(LAPTOP)], (1,), "broadcast", Path("weights"))
    assert (plan.routes, plan.backend, plan.address) == (("broadcast",), "gloo", "127.0.0.1")


def test_files_of_weights_lie_where_only_their_user_looks(tmp_path: Path) -> None:
    lane, bucket = FileLane([0], tmp_path / "weight_sync"), [("a", torch.ones(4))]
    source = lane.write(bucket, index_bucket(bucket), 0)[0]
    assert isinstance(source, FileBucket)
    for directory in (source.path.parent, tmp_path / "weight_sync"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    lane.close()
    assert list((tmp_path / "weight_sync").iterdir()) == []
