"""Weights on their way from a trainer to an engine. A bucket is a list of (Hugging Face name, full tensor); in transit,
one flat run of bytes, and an index that says which tensor lies where, which travels with the call."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from roll.errors import StrategyError

WeightBucket = Sequence[tuple[str, torch.Tensor]]

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a bucket: bytes [offset_bytes, offset_bytes + num_bytes) of the flat run."""

    name: str
    dtype: str  # as in "torch.<dtype>"
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True)
class BucketIndex:
    entries: tuple[TensorEntry, ...]
    num_bytes: int


@dataclass(frozen=True)
class MemoryBucket:
    """Read the bytes from a shared-memory segment of this host."""

    index: BucketIndex
    segment: str


@dataclass(frozen=True)
class CudaIpcBucket:
    """Read the bytes from the sender's GPU memory on this host. `handle` are the arguments that torch's own CUDA IPC
    reduction gives for the flat buffer; `device_uuid` names the GPU that holds it."""

    index: BucketIndex
    handle: tuple[object, ...]
    device_uuid: str


@dataclass(frozen=True)
class BroadcastBucket:
    """Take part in one broadcast of the bytes on the group that was joined under `group`."""

    index: BucketIndex
    group: str


@dataclass(frozen=True)
class FileBucket:
    """Read the tensors from a safetensors file that sender and receiver both see."""

    path: Path


@dataclass(frozen=True)
class GroupSpec:
    """A broadcast group of its own: one sender (rank 0) and all its receivers."""

    name: str
    host: str
    port: int
    world_size: int
    backend: str  # of a platform, such as gloo or nccl


BucketPlace = MemoryBucket | CudaIpcBucket | BroadcastBucket | FileBucket


@dataclass(frozen=True)
class RankedBucket:
    """Rank r of the engine reads the same tensors at `places[r]`."""

    places: tuple[BucketPlace, ...]


BucketSource = BucketPlace | RankedBucket


def index_bucket(bucket: WeightBucket) -> BucketIndex:
    """Lays the tensors of a bucket one after the other, each start aligned."""
    entries, offset = [], 0
    for name, tensor in bucket:
        num_bytes = tensor.numel() * tensor.element_size()
        entries.append(
            TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, num_bytes)
        )
        offset += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return BucketIndex(tuple(entries), offset)


def write_bucket(flat: torch.Tensor, bucket: WeightBucket, index: BucketIndex) -> None:
    """Copies the tensors into the flat uint8 buffer (at least `index.num_bytes` long)."""
    for (_, tensor), entry in zip(bucket, index.entries, strict=True):
        target = flat[entry.offset_bytes : entry.offset_bytes + entry.num_bytes]
        target.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach(), non_blocking=True)


def read_bucket(flat: torch.Tensor, index: BucketIndex) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors as views of the flat uint8 buffer: valid as long as it is not overwritten."""
    for entry in index.entries:
        raw = flat[entry.offset_bytes : entry.offset_bytes + entry.num_bytes]
        yield entry.name, raw.view(getattr(torch, entry.dtype)).view(entry.shape)


def fill_buckets(
    weights: Iterator[tuple[str, torch.Tensor]], bucket_bytes: int, joined: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Groups a stream of named tensors into buckets of at most `bucket_bytes`; a larger tensor stands alone. Those that
    `joined` gives the same name are one tensor to the receiver, and share a bucket."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for parts in _together(weights, joined) if joined else ([weight] for weight in weights):
        num_bytes = sum(
            -(-tensor.numel() * tensor.element_size() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for _, tensor in parts
        )
        if bucket and size + num_bytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket += parts
        size += num_bytes
    if bucket:
        yield bucket


def _together(
    weights: Iterator[tuple[str, torch.Tensor]], joined: Mapping[str, str]
) -> Iterable[list[tuple[str, torch.Tensor]]]:
    groups: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in weights:
        groups.setdefault(joined.get(name, name), []).append((name, tensor))
    return groups.values()


# Plain values for the place of a bucket, for engines whose processes are reached by messages without pickle.


def encode_source(source: BucketSource) -> dict[str, Any]:
    """Dictionaries, lists, strings, numbers and bytes only."""
    match source:
        case FileBucket():
            return {"kind": "file", "path": str(source.path)}
        case MemoryBucket():
            return {"kind": "memory", "index": _encode_index(source.index), "segment": source.segment}
        case BroadcastBucket():
            return {"kind": "broadcast", "index": _encode_index(source.index), "group": source.group}
        case CudaIpcBucket():
            handle = [list(part) if isinstance(part, tuple) else part for part in source.handle]
            return {
                "kind": "cuda_ipc",
                "index": _encode_index(source.index),
                "handle": handle,
                "device_uuid": source.device_uuid,
            }
        case RankedBucket():
            return {"kind": "ranked", "places": [encode_source(place) for place in source.places]}


def decode_source(message: dict[str, Any]) -> BucketSource:
    if message["kind"] == "ranked":
        return RankedBucket(tuple(_decode_place(place) for place in message["places"]))
    return _decode_place(message)


def _decode_place(message: dict[str, Any]) -> BucketPlace:
    match message["kind"]:
        case "file":
            return FileBucket(Path(message["path"]))
        case "memory":
            return MemoryBucket(_decode_index(message["index"]), message["segment"])
        case "broadcast":
            return BroadcastBucket(_decode_index(message["index"]), message["group"])
        case "cuda_ipc":
            handle = tuple(tuple(part) if isinstance(part, list) else part for part in message["handle"])
            return CudaIpcBucket(_decode_index(message["index"]), handle, message["device_uuid"])
        case kind:
            raise StrategyError(f"unknown kind of weight bucket: {kind!r}")


def _encode_index(index: BucketIndex) -> list[list[Any]]:
    entries = [[e.name, e.dtype, list(e.shape), e.offset_bytes, e.num_bytes] for e in index.entries]
    return [entries, [index.num_bytes]]


def _decode_index(message: list[list[Any]]) -> BucketIndex:
    entries, (num_bytes,) = message
    return BucketIndex(
        tuple(TensorEntry(name, dtype, tuple(shape), offset, size) for name, dtype, shape, offset, size in entries),
        num_bytes,
    )


# Which weights go together when not all of them are sent.

_BLOCK = re.compile(r"(?P<block>.+?\.\d+\.[^.]+)\.(?P<rest>.+)")
_MODULE_OF_ITS_OWN = re.compile(r"(o_proj|down_proj|[^.]*norm)\.[^.]+")


def with_partners(names: Iterable[str], changed: Collection[str]) -> set[str]:
    """The `names` (Hugging Face's) that changed, and those that an engine may fuse with one of them (q, k and v; gate
    and up; a layer's experts): a fused weight can only be rebuilt from all its parts."""
    groups = {_group(name) for name in changed}
    return {name for name in names if _group(name) in groups}


def _group(name: str) -> str:
    """A block of a numbered layer, but for its modules that no engine fuses; elsewhere a module."""
    match = _BLOCK.fullmatch(name)
    if match is None or _MODULE_OF_ITS_OWN.fullmatch(match["rest"]):
        return name.rpartition(".")[0]
    return match["block"]
