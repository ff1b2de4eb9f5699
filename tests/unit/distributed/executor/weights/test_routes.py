import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.distributed.executor.processes.resource_manager import AssignedSlot, Node
from roll.distributed.executor.weights.sender import EngineRoute, FileRouteSender, SendPlan
from roll.distributed.executor.weights.sync import choose_route, plan_send
from roll.distributed.weights.bucket import FileBucket, index_bucket
from roll.errors import ConfigError
from roll.platforms.table import NPU, ROCM

LAPTOP = Node(0, "127.0.0.1", ())
GPUS, OTHER_GPUS = Node(0, "10.0.0.1", ("0", "1", "2", "3")), Node(1, "10.0.0.2", ("0", "1", "2", "3"))


def on(node: Node, *gpu_ids: str, rank: int = 0) -> AssignedSlot:
    return AssignedSlot(rank, node.index, local_ids=tuple(map(node.gpu_ids.index, gpu_ids)), host=node)


def trainers(node: Node, *gpu_ids: str) -> list[AssignedSlot]:
    return [on(node, gpu, rank=rank) for rank, gpu in enumerate(gpu_ids)]


FOUR = trainers(GPUS, "0", "1", "2", "3")
TWO = trainers(GPUS, "0", "1")
BOTH_NODES = [replace(seat, rank=rank) for rank, seat in enumerate([*FOUR, *trainers(OTHER_GPUS, "0", "1", "2", "3")])]


OTHER_TWO = trainers(OTHER_GPUS, "0", "1")
LAPTOP_PAIR = [on(LAPTOP), on(LAPTOP, rank=1)]
CPU_NODES = Node(0, "10.0.0.1", ()), Node(1, "10.0.0.2", ())


def ways(plan: SendPlan) -> str:
    """Example: cuda_ipc:0,1 is an engine whose two ranks read what ranks 0 and 1 of the trainer send."""
    return " ".join(f"{way.route}:{','.join(map(str, way.senders))}" for way in plan.ways)


@pytest.mark.parametrize(
    ("ranks", "engines", "expected", "backend", "senders"),
    [
        ([on(LAPTOP)], [on(LAPTOP), on(LAPTOP)], "memory:0 memory:0", "gloo", (0,)),
        (FOUR[:1], [on(GPUS, "0")], "cuda_ipc:0", "nccl", (0,)),
        (FOUR, [on(GPUS, g) for g in "0123"], "cuda_ipc:0 cuda_ipc:1 cuda_ipc:2 cuda_ipc:3", "nccl", (0, 1, 2, 3)),
        (FOUR, [on(GPUS, "0", "1"), on(GPUS, "2", "3")], "cuda_ipc:0,1 cuda_ipc:2,3", "nccl", (0, 1, 2, 3)),
        (FOUR, [on(GPUS, "3", "1")], "cuda_ipc:3,1", "nccl", (0, 1, 3)),
        (TWO, [on(GPUS, "2", "3")], "broadcast:0,0", "nccl", (0,)),
        (TWO, [on(GPUS, "1", "2"), on(GPUS, "3")], "memory:0,0 broadcast:0", "nccl", (0,)),
        (
            TWO,
            [on(GPUS, "0", "1"), on(GPUS, "1", "2"), on(GPUS, "3")],
            "cuda_ipc:0,1 memory:0,0 broadcast:0",
            "nccl",
            (0, 1),
        ),
        (TWO, [on(GPUS, "0", "1"), on(OTHER_GPUS, "0", "1")], "cuda_ipc:0,1 broadcast:0,0", "nccl", (0, 1)),
        (
            BOTH_NODES,
            [on(GPUS, "0", "1"), on(OTHER_GPUS, "0", "1"), on(OTHER_GPUS, "2", "3")],
            "cuda_ipc:0,1 cuda_ipc:4,5 cuda_ipc:6,7",
            "nccl",
            (0, 1, 4, 5, 6, 7),
        ),
        ([*TWO, *OTHER_TWO], [on(OTHER_GPUS, "1", "2")], "memory:2,2", "nccl", (0, 2)),
        (
            [on(CPU_NODES[0]), on(CPU_NODES[1], rank=1)],
            [on(CPU_NODES[0]), on(CPU_NODES[1])],
            "memory:0 memory:1",
            "gloo",
            (0, 1),
        ),
    ],
    ids=[
        "laptop",
        "one-gpu",
        "colocated",
        "colocated-tp2",
        "colocated-tp2-in-another-order",
        "disjoint-tp2",
        "partly-shared",
        "all-three-on-one-host",
        "two-nodes-trainer-on-one",
        "two-nodes-colocated-tp2",
        "two-nodes-partly-shared-on-the-second",
        "two-nodes-without-gpus",
    ],
)
def test_the_route_and_the_senders_follow_from_the_placement(
    ranks: list[AssignedSlot], engines: list[AssignedSlot], expected: str, backend: str, senders: tuple[int, ...]
):
    ranks = [replace(seat, rank=rank) for rank, seat in enumerate(ranks)]
    plan = plan_send(ranks, 0, engines, [max(1, len(seat.gpu_ids)) for seat in engines], "auto", None)
    assert (ways(plan), plan.backend, plan.senders) == (expected, backend, senders)


def test_where_memory_is_shared_follows_from_the_placement():
    plan = plan_send(FOUR, 0, [on(GPUS, "0", "1"), on(GPUS, "2")], (2, 1), "auto", None)
    assert [plan.readers("cuda_ipc", rank) for rank in range(4)] == [[(0, 0)], [(0, 1)], [(1, 0)], []]
    assert plan.readers("memory", 0) == []
    assert choose_route(FOUR, 0, on(GPUS, "0"), 1, "memory") == EngineRoute("cuda_ipc", (0,))
    assert choose_route(FOUR, 0, on(GPUS, "2", "1"), 2, "memory") == EngineRoute("cuda_ipc", (2, 1))
    assert choose_route(TWO, 0, on(GPUS, "2"), 1, "memory") == EngineRoute("memory", (0,))
    assert choose_route(BOTH_NODES[:6], 0, on(OTHER_GPUS, "3"), 1, "memory") == EngineRoute("memory", (4,))
    with pytest.raises(ConfigError, match="weight_sync_route: memory needs .*10.0.0.1.*10.0.0.2"):
        choose_route(FOUR, 0, on(OTHER_GPUS, "0"), 1, "memory")
    # No process opens another's NPU memory here: the trainer's copy in host memory is read instead.
    trainers = [on(ASCEND, str(gpu), rank=gpu) for gpu in range(4)]
    for route in ("auto", "memory"):
        assert choose_route(trainers, 0, on(ASCEND, "2", "1"), 2, route) == EngineRoute("memory", (0, 0))
    amd = replace(GPUS, platform=ROCM)
    for node in (GPUS, amd):
        assert choose_route([on(node, "0")], 0, on(node, "0"), 1, "auto").route == "cuda_ipc"


def test_a_broadcast_takes_the_backend_of_its_devices():
    disjoint = plan_send(FOUR[:1], 0, [on(GPUS, "1"), on(OTHER_GPUS, "0")], (1, 1), "broadcast", None)
    assert (ways(disjoint), disjoint.backend) == ("broadcast:0 broadcast:0", "nccl")
    assert disjoint.address == "10.0.0.1"
    overlapping = plan_send(FOUR[:1], 0, [on(GPUS, "0", "1")], (2,), "broadcast", None)
    assert (ways(overlapping), overlapping.backend) == ("broadcast:0,0", "gloo")
    plan = plan_send([on(LAPTOP)], 0, [on(LAPTOP)], (1,), "broadcast", Path("weights"))
    assert (ways(plan), plan.backend, plan.address) == ("broadcast:0", "gloo", "127.0.0.1")
    trainers = [on(ASCEND, "0")]
    plan = plan_send(trainers, 0, [on(ASCEND, "1"), on(OTHER_ASCEND, "0")], (1, 1), "auto", None)
    assert ([way.route for way in plan.ways], plan.backend) == (["broadcast", "broadcast"], "hccl")
    shared = plan_send(trainers, 0, [on(ASCEND, "0"), on(OTHER_ASCEND, "0")], (1, 1), "broadcast", None)
    assert shared.backend == "gloo"


def test_files_of_weights_lie_where_only_their_user_looks(tmp_path: Path) -> None:
    lane, bucket = FileRouteSender([(0, 0)], tmp_path / "weight_sync"), [("a", torch.ones(4))]
    source = lane.write(bucket, index_bucket(bucket), 0)[0, 0]
    assert isinstance(source, FileBucket)
    for directory in (source.path.parent, tmp_path / "weight_sync"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    lane.close()
    assert list((tmp_path / "weight_sync").iterdir()) == []


ASCEND, OTHER_ASCEND = replace(GPUS, platform=NPU), replace(OTHER_GPUS, platform=NPU)
