"""Buckets through shared memory, files, and a gloo group between processes."""

import multiprocessing
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import torch

from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketIndex,
    GroupSpec,
    MemoryBucket,
    index_bucket,
    write_bucket,
)
from roll.distributed.weights.transport import SHARED_MEMORY_DIRECTORY, SharedSegment, WeightReceiver, write_file_bucket
from roll.errors import StrategyError

BUCKET = [
    ("a.weight", torch.arange(5, dtype=torch.bfloat16)),
    ("b", torch.arange(12.0).reshape(3, 4)),
    ("c", torch.ones(())),
]
CPU = torch.device("cpu")


def check(received: dict[str, torch.Tensor]) -> None:
    assert list(received) == ["a.weight", "b", "c"]
    for name, tensor in BUCKET:
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name], tensor)


def test_a_bucket_passes_through_shared_memory_and_outlives_its_name():
    index = index_bucket(BUCKET)
    name = f"roll-test-{uuid.uuid4().hex}"
    segment = SharedSegment.create(name, index.num_bytes)
    write_bucket(segment.flat, BUCKET, index)
    receiver = WeightReceiver(CPU)
    check(dict(receiver.read(MemoryBucket(index, name))))
    segment.unlink()
    segment.unlink()
    assert not (SHARED_MEMORY_DIRECTORY / name).exists()
    write_bucket(segment.flat, [(name, tensor + 1) for name, tensor in BUCKET], index)
    again = dict(receiver.read(MemoryBucket(index, name)))
    assert torch.equal(again["b"], BUCKET[1][1] + 1)
    receiver.close()
    segment.close()


def test_a_bucket_passes_through_a_file(tmp_path: Path):
    source = write_file_bucket(tmp_path / "bucket.safetensors", BUCKET)
    check(dict(WeightReceiver(CPU).read(source)))
    assert [path.name for path in tmp_path.iterdir()] == ["bucket.safetensors"]


def _receive(spec: GroupSpec, rank: int, index: BucketIndex, sums: "Queue[list[float]]") -> None:
    receiver = WeightReceiver(CPU)
    receiver.join(spec, rank)
    totals = []
    for _ in range(2):
        received = dict(receiver.read(BroadcastBucket(index, spec.name)))
        totals.append(float(received["a.weight"].float().sum() + received["b"].sum() + received["c"]))
    sums.put(totals)
    receiver.close()


def test_a_bucket_is_broadcast_to_two_processes():
    index = index_bucket(BUCKET)
    store = BroadcastGroup.open_store("127.0.0.1")
    spec = GroupSpec("test", "127.0.0.1", store.port, 3, "gloo")
    context = multiprocessing.get_context("forkserver")
    sums: Queue[list[float]] = context.Queue()
    receivers = [context.Process(target=_receive, args=(spec, rank, index, sums), daemon=True) for rank in (1, 2)]
    for process in receivers:
        process.start()
    group = BroadcastGroup(spec, 0, CPU, store, timeout_s=300)
    flat = torch.zeros(index.num_bytes, dtype=torch.uint8)
    for factor in (1, 2):
        write_bucket(flat, [(name, tensor * factor) for name, tensor in BUCKET], index)
        group.broadcast(flat)
    assert [sums.get(timeout=60) for _ in receivers] == [[10 + 66 + 1, 20 + 132 + 2]] * 2
    for process in receivers:
        process.join(timeout=20)
    group.close()


def _lead(pipe: Connection) -> None:
    """The sender of a group: opens it, and closes it when it is told to, without having sent anything."""
    store = BroadcastGroup.open_store("127.0.0.1")
    spec = GroupSpec("test", "127.0.0.1", store.port, 2, "gloo")
    pipe.send(spec)
    group = BroadcastGroup(spec, 0, CPU, store)
    pipe.recv()
    group.close()
    pipe.recv()


class NeverDone:
    """A broadcast as NCCL leaves it when the sender is gone: a kernel that waits."""

    def is_completed(self) -> bool:
        return False


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_a_receiver_gives_up_when_its_sender_is_gone(how: str):
    """With gloo a closed connection would tell it; NCCL tells nothing, so the group's store is asked."""
    context = multiprocessing.get_context("forkserver")
    pipe, other_end = context.Pipe()
    sender = context.Process(target=_lead, args=(other_end,), daemon=True)
    sender.start()
    group = BroadcastGroup(pipe.recv(), 1, CPU)
    if how == "closes":
        pipe.send("close")
    else:
        sender.kill()
    with pytest.raises(StrategyError, match="its sender has closed it, or has ended"):
        group._wait_while_there_is_a_sender(NeverDone())  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="is closed"):
        group.broadcast(torch.zeros(1))
    sender.kill()


def test_a_receiver_leaves_its_group_when_it_joins_the_next_one():
    """Each restart of an engine makes a new group; what NCCL holds for an old one would pile up on the device."""
    receiver, stores = WeightReceiver(CPU), [BroadcastGroup.open_store("127.0.0.1") for _ in range(2)]
    specs = [GroupSpec(f"weights-{i}", "127.0.0.1", store.port, 2, "gloo") for i, store in enumerate(stores)]
    joined = []
    for spec, store in zip(specs, stores, strict=True):
        with ThreadPoolExecutor() as threads:
            sender = threads.submit(BroadcastGroup, spec, 0, CPU, store)
            receiver.join(spec, 1)
            sender.result()
        joined.append(receiver._group)
    assert joined[0] is not None and joined[0]._group is None
    with pytest.raises(StrategyError, match="has not joined broadcast group 'weights-0'"):
        list(receiver.read(BroadcastBucket(BucketIndex((), 0), "weights-0")))
    receiver.close()
