"""How weights are cut into buckets, and which bytes a receiver takes for its own."""

import uuid
from collections.abc import Iterator

import pytest
import torch

from roll.distributed.weights import transport
from roll.distributed.weights.bucket import (
    BroadcastBucket,
    GroupSpec,
    MemoryBucket,
    RankedBucket,
    fill_buckets,
    index_bucket,
    write_bucket,
)
from roll.distributed.weights.transport import SharedSegment, WeightReceiver
from tests.helpers.cases import cases

CPU = torch.device("cpu")


def sizes(num_bytes: list[int], bucket_bytes: int) -> list[list[int]]:
    weights = ((str(i), torch.zeros(n, dtype=torch.uint8)) for i, n in enumerate(num_bytes))
    return [[len(tensor) for _, tensor in bucket] for bucket in fill_buckets(weights, bucket_bytes)]


@cases("num_bytes, bucket_bytes, wanted")
def test_buckets_hold_what_fits_with_its_alignment(
    num_bytes: list[int], bucket_bytes: int, wanted: list[list[int]]
) -> None:
    assert sizes(num_bytes, bucket_bytes) == wanted


def test_a_bucket_fits_its_bytes_and_holds_partners_together() -> None:
    weights = [(str(i), torch.zeros(i % 7 * 13, dtype=torch.bfloat16)) for i in range(50)]
    buckets = list(fill_buckets(iter(weights), 512))
    assert [name for bucket in buckets for name, _ in bucket] == [str(i) for i in range(50)]
    assert all(index_bucket(bucket).num_bytes <= 512 for bucket in buckets) and len(buckets) > 5
    weights = [(name, torch.zeros(64, dtype=torch.uint8)) for name in ("q", "q_bias", "k", "o", "v")]
    joined = dict.fromkeys("qkv", "qkv")
    buckets = [[name for name, _ in bucket] for bucket in fill_buckets(iter(weights), 128, joined)]
    assert buckets == [["q", "k", "v"], ["q_bias", "o"]]


def segment_of(value: float) -> tuple[SharedSegment, MemoryBucket]:
    bucket = [("w", torch.full((3,), value))]
    index = index_bucket(bucket)
    segment = SharedSegment.create(f"roll-test-{uuid.uuid4().hex}", index.num_bytes)
    write_bucket(segment.flat, bucket, index)
    return segment, MemoryBucket(index, segment.name)


@pytest.fixture
def segments() -> Iterator[list[tuple[SharedSegment, MemoryBucket]]]:
    made = [segment_of(float(i)) for i in range(4)]
    yield made
    for segment, _ in made:
        segment.unlink()
        segment.close()


def first(receiver: WeightReceiver, source: MemoryBucket | RankedBucket) -> float:
    return float(dict(receiver.read(source))["w"][0])


def test_a_rank_reads_its_own_place(segments: list[tuple[SharedSegment, MemoryBucket]]) -> None:
    ranked = RankedBucket(tuple(source for _, source in segments))
    for rank in (0, 2):
        receiver = WeightReceiver(CPU, rank)
        assert first(receiver, ranked) == rank
        receiver.close()


class Group:
    """A broadcast group of one process, whose broadcast fills the buffer with the number of the call."""

    def __init__(self, spec: GroupSpec, rank: int, device: torch.device):
        self.spec, self.rank, self.device, self.lengths = spec, rank, device, list[int]()

    def broadcast(self, flat: torch.Tensor) -> None:
        self.lengths.append(len(flat))
        flat.fill_(len(self.lengths))

    def close(self) -> None:
        pass


def test_a_receiver_takes_as_many_bytes_as_the_bucket_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BroadcastGroup", Group)
    receiver = WeightReceiver(CPU, rank=2)
    receiver.join(GroupSpec("g", "127.0.0.1", 1, 8, "gloo"), first_rank=3)
    group = receiver._group
    assert isinstance(group, Group) and group.rank == 5, "rank 2 of an engine whose ranks begin at 3"
    for number, length in enumerate((128, 64, 256, 64), 1):
        index = index_bucket([("w", torch.zeros(length, dtype=torch.uint8))])
        (received,) = dict(receiver.read(BroadcastBucket(index, "g"))).values()
        assert received.tolist() == [number] * length
    assert group.lengths == [128, 64, 256, 64]
