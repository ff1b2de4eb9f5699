"""Buckets through shared memory, files, and a gloo group between processes."""

import multiprocessing
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import torch

from roll.distributed.strategy.transport import (
    SHARED_MEMORY_DIRECTORY,
    BroadcastGroup,
    SharedSegment,
    WeightReceiver,
    write_file_bucket,
)
from roll.distributed.strategy.weights import (
    BroadcastBucket,
    BucketIndex,
    GroupSpec,
    MemoryBucket,
    index_bucket,
    write_bucket,
)
from roll.errors import ResourceError, StrategyError

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
    segment = SharedSegment.create("roll-test-segment", index.num_bytes)
    write_bucket(segment.flat, BUCKET, index)
    receiver = WeightReceiver(CPU)
    check(dict(receiver.read(MemoryBucket(index, "roll-test-segment"))))
    segment.unlink()
    segment.unlink()
    assert not (SHARED_MEMORY_DIRECTORY / "roll-test-segment").exists()
    write_bucket(segment.flat, [(name, tensor + 1) for name, tensor in BUCKET], index)
    again = dict(receiver.read(MemoryBucket(index, "roll-test-segment")))
    assert torch.equal(again["b"], BUCKET[1][1] + 1)
    receiver.close()
    segment.close()


def test_more_shared_memory_than_there_is_says_what_to_do():
    with pytest.raises(ResourceError, match="no room for 1048576 MiB of shared memory.*model_update_buffer_size_mb"):
        SharedSegment.create("roll-test-too-large", 1 << 40)
    assert not (SHARED_MEMORY_DIRECTORY / "roll-test-too-large").exists()


def test_an_unknown_segment_or_group_is_an_error():
    index = BucketIndex((), 0)
    receiver = WeightReceiver(CPU)
    with pytest.raises(StrategyError, match="no shared-memory segment 'nowhere'"):
        list(receiver.read(MemoryBucket(index, "nowhere")))
    with pytest.raises(StrategyError, match="has not joined broadcast group 'nobody'"):
        list(receiver.read(BroadcastBucket(index, "nobody")))
    with pytest.raises(ValueError, match="not a segment name"):
        SharedSegment.open("../etc/passwd")


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
