"""How weight buckets travel between processes: shared memory, CUDA IPC, broadcast groups, files. Each process that
reads has one `WeightReceiver`. Nothing is pickled: raw bytes travel, and the index of
`roll.distributed.weights.bucket`."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketIndex,
    BucketSource,
    CudaIpcBucket,
    FileBucket,
    GroupSpec,
    MemoryBucket,
    RankedBucket,
    WeightBucket,
    read_bucket,
)
from roll.errors import ResourceError, StrategyError
from roll.platforms.table import CPU, platform_of

SHARED_MEMORY_DIRECTORY = Path("/dev/shm")

_SEGMENTS_KEPT = 2  # a double-buffered sender alternates between two


class SharedSegment:
    """Shared memory of this host as a flat uint8 tensor, which the creator unlinks."""

    def __init__(self, name: str, path: Path, file_descriptor: int, num_bytes: int):
        self.name = name
        self._path = path
        self._memory = mmap.mmap(file_descriptor, num_bytes)
        self.flat = torch.frombuffer(self._memory, dtype=torch.uint8)

    @classmethod
    def create(cls, name: str, num_bytes: int) -> SharedSegment:
        """A new segment under a name nobody uses. Raises ResourceError when shared memory has no room for it."""
        path = _segment_path(name)
        file_descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file_descriptor, 0, num_bytes)  # fail here, not with SIGBUS at the first write
            return cls(name, path, file_descriptor, num_bytes)
        except OSError as error:
            path.unlink()
            free = os.statvfs(SHARED_MEMORY_DIRECTORY)
            raise ResourceError(
                f"no room for {num_bytes >> 20} MiB of shared memory: {SHARED_MEMORY_DIRECTORY} has "
                f"{free.f_bavail * free.f_frsize >> 20} MiB free. Lower model_update_buffer_size_mb, or give the "
                "container more (docker --shm-size)."
            ) from error
        finally:
            os.close(file_descriptor)

    @classmethod
    def open(cls, name: str) -> SharedSegment:
        path = _segment_path(name)
        try:
            file_descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError as error:
            raise StrategyError(
                f"no shared-memory segment {name!r} on this host: sender and receiver must share one"
            ) from error
        try:
            return cls(name, path, file_descriptor, os.fstat(file_descriptor).st_size)
        finally:
            os.close(file_descriptor)

    def close(self) -> None:
        """Unmaps the segment; the memory is freed with the last view."""
        self.flat = torch.empty(0, dtype=torch.uint8)
        with contextlib.suppress(BufferError):  # somebody still holds a view: the mapping ends with it
            self._memory.close()

    def unlink(self) -> None:
        """Removes the name. Idempotent; processes that have it open are not affected."""
        self._path.unlink(missing_ok=True)


def _segment_path(name: str) -> Path:
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"not a segment name: {name!r}")
    return SHARED_MEMORY_DIRECTORY / name


def cuda_ipc_bucket(flat: torch.Tensor, index: BucketIndex) -> CudaIpcBucket:
    """A bucket that one other process opens in the memory of the same GPU. `flat` is a uint8 CUDA buffer, filled, and
    kept unchanged by the sender until the receiver is done. One per receiving process: torch counts references by
    handle."""
    from torch.multiprocessing.reductions import reduce_tensor

    torch.cuda.current_stream(flat.device).synchronize()
    arguments: tuple[Any, ...] = reduce_tensor(flat)[1]
    # without the types (0 tensor, 4 storage, 5 dtype) and the sender's device index (6): plain numbers and bytes travel
    size, stride, offset = tuple(arguments[1]), tuple(arguments[2]), arguments[3]
    handle = (size, stride, offset, *arguments[7:10], *arguments[11:])
    return CudaIpcBucket(index, handle, str(torch.cuda.get_device_properties(flat.device).uuid))


def _open_cuda_ipc(bucket: CudaIpcBucket) -> torch.Tensor:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    visible = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    if bucket.device_uuid not in visible:
        raise StrategyError(
            f"the weights lie on GPU {bucket.device_uuid}, which this process does not see: CUDA IPC needs one GPU"
        )
    size, stride, offset, *storage = bucket.handle
    handle, num_bytes, start, *counters = storage
    return rebuild_cuda_tensor(
        torch.Tensor,
        torch.Size(size),  # type: ignore[arg-type]
        stride,
        offset,
        torch.UntypedStorage,
        torch.uint8,
        visible[bucket.device_uuid],
        handle,
        num_bytes,
        start,
        False,
        *counters,
    )


def write_file_bucket(path: Path, bucket: WeightBucket) -> FileBucket:
    """Writes the tensors as safetensors, aside and renamed, so that a half-written file is never read."""
    from safetensors.torch import save_file

    aside = path.with_name(path.name + ".tmp")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in bucket}, aside)
    aside.replace(path)
    return FileBucket(path)


class WeightReceiver:
    """Reads buckets in one process, which is rank `rank` of its engine. Keeps the last segments, and the receive buffer
    of an update, so that a stream opens them once."""

    def __init__(self, device: torch.device, rank: int = 0):
        self._device = device
        self._rank = rank
        self._group: BroadcastGroup | None = None
        self._segments: OrderedDict[str, SharedSegment] = OrderedDict()
        self._received = torch.empty(0, dtype=torch.uint8, device=device)

    def join(self, spec: GroupSpec, first_rank: int) -> None:
        """Joins a broadcast group, in which the engine has the ranks from `first_rank` (1 or more) on, and leaves the
        one before: a sender has one at a time, and what an old one holds on the device is not needed any more."""
        if self._group is not None:
            self._group.close()
            self._group = None
        device = torch.device("cpu") if spec.backend == CPU.communication_backend else self._device
        self._group = BroadcastGroup(spec, first_rank + self._rank, device)

    def read(self, source: BucketSource) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of one bucket: views that are valid until the next `read`, on the device or on the CPU."""
        match source:
            case MemoryBucket():
                yield from read_bucket(self._segment(source.segment).flat, source.index)
            case BroadcastBucket():
                yield from read_bucket(self._receive(source), source.index)
            case CudaIpcBucket():
                yield from read_bucket(
                    _open_cuda_ipc(source), source.index
                )  # torch keeps the mapping while a view lives
            case FileBucket():
                yield from _read_file(source.path)
            case RankedBucket():
                yield from self.read(source.places[self._rank])

    def rest(self) -> None:
        """Frees the received bucket after the last one of an update."""
        platform = platform_of(self._received.device)
        if platform.is_accelerator:
            self._received = torch.empty(0, dtype=torch.uint8, device=self._device)
            platform.empty_cache()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._received = torch.empty(0, dtype=torch.uint8, device=self._device)

    def _segment(self, name: str) -> SharedSegment:
        if name not in self._segments:
            self._segments[name] = SharedSegment.open(name)
            while len(self._segments) > _SEGMENTS_KEPT:
                self._segments.popitem(last=False)[1].close()
        self._segments.move_to_end(name)
        return self._segments[name]

    def _receive(self, source: BroadcastBucket) -> torch.Tensor:
        group = self._group
        if group is None or group.spec.name != source.group:
            raise StrategyError(f"this engine has not joined broadcast group {source.group!r}")
        if len(self._received) < source.index.num_bytes or self._received.device != group.device:
            self._received = torch.empty(source.index.num_bytes, dtype=torch.uint8, device=group.device)
        flat = self._received[: source.index.num_bytes]
        group.broadcast(flat)
        return flat


def _read_file(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            yield name, file.get_tensor(name)
