"""A sending rank's side of every route: buffers that are filled, and what is done while they are read and afterwards.
No Ray here: `Peers` are the receivers, however they are reached."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from roll.distributed.executor.processes.cleaner import MARK, segment_label
from roll.distributed.executor.weights.send_plan import Reader, SendPlan
from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketIndex,
    BucketPlace,
    GroupSpec,
    MemoryBucket,
    WeightBucket,
    write_bucket,
)
from roll.distributed.weights.transport import SharedSegment, cuda_ipc_bucket, write_file_bucket
from roll.errors import StrategyError

_POLL_S = 0.05
_CAUSE_WAIT_S = 3.0


class PendingReplies(Protocol):
    def result(self, timeout_s: float | None = None) -> list[Any]: ...

    def raise_failures(self) -> None:
        """Raises if a call has failed already; does not wait."""
        ...


class Peers(Protocol):
    """The receivers of weights, in a fixed order."""

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> PendingReplies:
        """Calls `method` on the receivers named by position, each with its own arguments."""
        ...


class Lane(ABC):
    """One route to some readers. Two buffers take turns, so that one is written while the other is read."""

    def __init__(self, readers: Sequence[Reader]):
        self.readers = tuple(readers)

    @abstractmethod
    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        """Fills buffer `turn` (0 or 1). Returns for each of them where to read."""

    def transmit(self, pending: PendingReplies) -> None:
        """What the sender does while the receivers read. Must not outlive a failed receiver."""
        return

    def after(self, turn: int) -> None:
        """All readers are through with buffer `turn`."""
        return

    def rest(self) -> None:
        """All weights of an update are sent: what lies on a GPU makes room for other roles until the next one."""
        return

    def close(self) -> None:
        """Gives the buffers back."""
        return


class MemoryLane(Lane):
    """Shared memory of the host. The name goes away as soon as all have it open. A sender that is killed before leaves
    it to the run's cleaner; on a Ray cluster that the run has only joined there is none, and the name stays."""

    def __init__(self, readers: Sequence[Reader]):
        super().__init__(readers)
        self._segments: list[SharedSegment | None] = [None, None]

    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        segment = self._segments[turn]
        if segment is None or len(segment.flat) < index.num_bytes:
            if segment is not None:
                segment.close()
            name = f"roll-{os.getpid()}{segment_label(os.environ.get(MARK, ''))}{uuid.uuid4().hex[:8]}"
            segment = self._segments[turn] = SharedSegment.create(name, max(index.num_bytes, 1))
        write_bucket(segment.flat, bucket, index)
        if segment.flat.is_cuda or any(tensor.is_cuda for _, tensor in bucket):
            torch.cuda.synchronize()
        return dict.fromkeys(self.readers, MemoryBucket(index, segment.name))

    def after(self, turn: int) -> None:
        segment = self._segments[turn]
        if segment is not None:
            segment.unlink()

    def close(self) -> None:
        for segment in self._segments:
            if segment is not None:
                segment.unlink()
                segment.close()
        self._segments = [None, None]


class CudaIpcLane(Lane):
    """The memory of a GPU that sender and readers share."""

    def __init__(self, readers: Sequence[Reader], device: torch.device):
        super().__init__(readers)
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=device) for _ in range(2)]

    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        self._buffers[turn] = _at_least(self._buffers[turn], index.num_bytes, self._device)
        write_bucket(self._buffers[turn], bucket, index)
        return {reader: cuda_ipc_bucket(self._buffers[turn], index) for reader in self.readers}

    def rest(self) -> None:
        """Every bucket leaves a count of its readers with the buffer's memory, so that goes, too."""
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=self._device) for _ in range(2)]
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()

    def close(self) -> None:
        self.rest()


class BroadcastLane(Lane):
    """A collective of its own: gloo on the CPU, NCCL between GPUs. The readers are its ranks from 1 on, in order."""

    def __init__(self, readers: Sequence[Reader], plan: SendPlan, device: torch.device, peers: Peers):
        super().__init__(readers)
        self._device = device if plan.backend == "nccl" else torch.device("cpu")
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=self._device) for _ in range(2)]
        self._sending = self._buffers[0]
        store = BroadcastGroup.open_store(plan.address)
        first_ranks = {receiver: number for number, (receiver, rank) in enumerate(readers, 1) if rank == 0}
        name = f"weights-{uuid.uuid4().hex[:8]}"
        spec = GroupSpec(name, plan.address, store.port, 1 + len(readers), plan.backend)
        joining = peers.start("join_weight_group", {i: (spec, first) for i, first in first_ranks.items()})
        groups: list[BroadcastGroup] = []
        try:
            _while_watching(joining, lambda: groups.append(BroadcastGroup(spec, 0, self._device, store)))
            joining.result()
        except BaseException:
            BroadcastGroup.give_up(spec)  # or the readers that can join would wait for those that cannot
            raise
        self._group = groups[0]

    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        self._buffers[turn] = _at_least(self._buffers[turn], index.num_bytes, self._device)
        self._sending = self._buffers[turn][: index.num_bytes]
        write_bucket(self._sending, bucket, index)
        if any(tensor.is_cuda for _, tensor in bucket):  # gloo reads the buffer at once
            torch.cuda.synchronize()
        return dict.fromkeys(self.readers, BroadcastBucket(index, self._group.spec.name))

    def transmit(self, pending: PendingReplies) -> None:
        _while_watching(pending, lambda: self._group.broadcast(self._sending))

    def rest(self) -> None:
        if self._device.type == "cuda":
            self._buffers = [torch.empty(0, dtype=torch.uint8, device=self._device) for _ in range(2)]
            self._sending = self._buffers[0]
            torch.cuda.empty_cache()

    def close(self) -> None:
        self._group.close()


class FileLane(Lane):
    """Files in a directory that all receivers see."""

    def __init__(self, readers: Sequence[Reader], directory: Path):
        super().__init__(readers)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory / f"weights-{uuid.uuid4().hex[:8]}"
        self._directory.mkdir(mode=0o700)

    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        source = write_file_bucket(self._directory / f"bucket-{turn}.safetensors", bucket)
        return dict.fromkeys(self.readers, source)

    def after(self, turn: int) -> None:
        (self._directory / f"bucket-{turn}.safetensors").unlink()

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def make_lanes(peers: Peers, plan: SendPlan, rank: int, device: torch.device) -> Iterator[Lane]:
    """What this rank of the trainer sends by."""
    if readers := plan.readers("memory", rank):
        yield MemoryLane(readers)
    if readers := plan.readers("cuda_ipc", rank):
        yield CudaIpcLane(readers, device)
    if readers := plan.readers("file", rank):
        if plan.directory is None:
            raise StrategyError("the file route needs a directory that trainer and engines see")
        yield FileLane(readers, plan.directory)
    if readers := plan.readers("broadcast", rank):
        yield BroadcastLane(readers, plan, device, peers)


def _at_least(buffer: torch.Tensor, num_bytes: int, device: torch.device) -> torch.Tensor:
    return buffer if len(buffer) >= num_bytes else torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _while_watching(pending: PendingReplies, work: Callable[[], None]) -> None:
    """Runs blocking `work` in a thread and raises as soon as a call in `pending` fails: the work would wait for it
    for ever."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="weight broadcast")
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        if thread.is_alive():
            pending.raise_failures()
    if errors:
        _raise_cause(pending)
        raise errors[0]


def _raise_cause(pending: PendingReplies) -> None:
    """A dead receiver is the cause, the broken connection its consequence, and may be known earlier."""
    deadline = time.monotonic() + _CAUSE_WAIT_S
    while time.monotonic() < deadline:
        pending.raise_failures()
        time.sleep(_POLL_S)
