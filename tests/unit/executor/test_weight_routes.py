import stat
from pathlib import Path

import pytest
import torch

from roll.distributed.executor.resource_manager import Node, Seat
from roll.distributed.executor.weight_sender import FileLane
from roll.distributed.executor.weight_sync import choose_route, plan_send
from roll.distributed.strategy.weights import FileBucket, index_bucket
from roll.errors import ConfigError

LAPTOP = Node(0, "127.0.0.1", ())
GPUS, OTHER_GPUS = Node(0, "10.0.0.1", ("0", "1", "2", "3")), Node(1, "10.0.0.2", ("0", "1", "2", "3"))


def on(node: Node, *gpu_ids: str, rank: int = 0) -> Seat:
    return Seat(rank, 0, node, (), gpu_ids)


@pytest.mark.parametrize(
    ("sender", "receiver", "route"),
    [
        (on(LAPTOP), on(LAPTOP), "memory"),
        (on(GPUS, "0"), on(GPUS, "0"), "cuda_ipc"),
        (on(GPUS, "0"), on(GPUS, "1"), "broadcast"),
        (on(GPUS, "0"), on(GPUS, "0", "1"), "broadcast"),
        (on(GPUS, "0"), on(OTHER_GPUS, "0"), "broadcast"),
    ],
)
def test_the_route_follows_from_the_placement(sender: Seat, receiver: Seat, route: str):
    assert choose_route(sender, receiver, "auto") == route


def test_memory_on_gpus_means_ipc_on_one_and_shared_memory_between_two():
    assert choose_route(on(GPUS, "0"), on(GPUS, "0"), "memory") == "cuda_ipc"
    assert choose_route(on(GPUS, "0"), on(GPUS, "1"), "memory") == "memory"


def test_memory_between_hosts_is_refused():
    with pytest.raises(ConfigError, match="weight_sync_route: memory needs one host.*10.0.0.1.*10.0.0.2"):
        choose_route(on(GPUS, "0"), on(OTHER_GPUS, "0"), "memory")


def test_nccl_joins_distinct_gpus_only():
    disjoint = plan_send(on(GPUS, "0"), [on(GPUS, "1"), on(OTHER_GPUS, "0")], (1, 1), "auto", None)
    assert (disjoint.routes, disjoint.backend) == (("broadcast", "broadcast"), "nccl")
    assert disjoint.address == "10.0.0.1"
    overlapping = plan_send(on(GPUS, "0"), [on(GPUS, "0", "1")], (2,), "auto", None)
    assert (overlapping.routes, overlapping.backend) == (("broadcast",), "gloo")
    mixed = plan_send(on(GPUS, "0"), [on(GPUS, "0"), on(GPUS, "1")], (1, 1), "auto", None)
    assert (mixed.routes, mixed.backend) == (("cuda_ipc", "broadcast"), "nccl")


def test_a_laptop_broadcasts_over_gloo_on_loopback():
    plan = plan_send(on(LAPTOP), [on(LAPTOP)], (1,), "broadcast", Path("weights"))
    assert (plan.routes, plan.backend, plan.address) == (("broadcast",), "gloo", "127.0.0.1")


def test_files_of_weights_lie_where_only_their_user_looks(tmp_path: Path) -> None:
    lane, bucket = FileLane([0], tmp_path / "weight_sync"), [("a", torch.ones(4))]
    source = lane.write(bucket, index_bucket(bucket), 0)[0]
    assert isinstance(source, FileBucket)
    for directory in (source.path.parent, tmp_path / "weight_sync"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    lane.close()
    assert list((tmp_path / "weight_sync").iterdir()) == []
