"""Plain values for the place of a bucket, for engines whose processes are reached by messages without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketIndex,
    BucketPlace,
    BucketSource,
    CudaIpcBucket,
    FileBucket,
    MemoryBucket,
    RankedBucket,
    TensorEntry,
)
from roll.errors import StrategyError


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
