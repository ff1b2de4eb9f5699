"""A sending rank's side of every route. No Ray here: `Peers` are the receivers, however they are reached."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from roll.distributed.executor.processes.cleaner import MARK, segment_label
from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketIndex,
    BucketPlace,
    BucketSource,
    GroupSpec,
    MemoryBucket,
    RankedBucket,
    WeightBucket,
    index_bucket,
    write_bucket,
)
from roll.distributed.weights.transport import SharedSegment, cuda_ipc_bucket, write_file_bucket
from roll.errors import StrategyError, describe
from roll.platforms.table import CPU, platform_of
from roll.utils.network import LOOPBACK

# How the weights of an update reach every engine: plain data that travels to the sending ranks.

Route = Literal["memory", "cuda_ipc", "broadcast", "file"]
Reader = tuple[int, int]  # (receiver, one of its ranks)


@dataclass(frozen=True)
class EngineRoute:
    """How one engine is reached: `senders[r]` is the trainer's rank that fills the buffers which rank r reads."""

    route: Route
    senders: tuple[int, ...]


@dataclass(frozen=True)
class SendReport:
    """The versions that the receivers report after an update, and the bytes of the weights in it."""

    versions: list[int]
    num_bytes: int


@dataclass(frozen=True)
class SendPlan:
    """One way per receiver. The trainer's rank `lead` drives the update, broadcasts and writes files; `senders` of
    shared memory and CUDA IPC may be others. `address`: where the lead can be reached, for broadcast. `directory`:
    seen by all, for files."""

    ways: tuple[EngineRoute, ...]
    lead: int = 0
    backend: str = "gloo"
    address: str = LOOPBACK
    directory: Path | None = None
    generation: int = 0  # another one for other processes behind the same receivers

    @cached_property
    def senders(self) -> tuple[int, ...]:
        """The trainer's ranks that take part, in order; the lead is one of them."""
        return tuple(sorted({self.lead, *(rank for way in self.ways for rank in way.senders)}))

    def readers(self, route: Route, sender: int) -> list[Reader]:
        """Return the receivers that read what this rank of the trainer sends by this route."""
        return [
            (receiver, rank)
            for receiver, way in enumerate(self.ways)
            if way.route == route
            for rank, source in enumerate(way.senders)
            if source == sender
        ]


# A sending rank's side of every route.

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


class RouteSender(ABC):
    """One route to some readers. Two buffers take turns, so that one is written while the other is read."""

    def __init__(self, readers: Sequence[Reader]):
        self.readers = tuple(readers)

    @abstractmethod
    def write(self, bucket: WeightBucket, index: BucketIndex, turn: int) -> dict[Reader, BucketPlace]:
        """Fills buffer `turn` (0 or 1). Returns for each of them where to read."""

    def transmit(self, pending: PendingReplies) -> None:
        """Send while the receivers read. Must not outlive a failed receiver."""
        return

    def after(self, turn: int) -> None:
        """All readers are through with buffer `turn`."""
        return

    def rest(self) -> None:
        """All weights of an update are sent: what lies on a GPU makes room for other roles until the next one."""
        return

    def close(self) -> None:
        return


class MemoryRouteSender(RouteSender):
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
        _wait_for_copies(bucket)
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


class CudaIpcRouteSender(RouteSender):
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
        platform_of(self._device).empty_cache()

    def close(self) -> None:
        self.rest()


class BroadcastRouteSender(RouteSender):
    """A collective of its own (gloo, or the backend of the platform); the readers are its ranks from 1 on, in order."""

    def __init__(self, readers: Sequence[Reader], plan: SendPlan, device: torch.device, peers: Peers):
        super().__init__(readers)
        self._device = torch.device("cpu") if plan.backend == CPU.communication_backend else device
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
        _wait_for_copies(bucket)  # gloo reads the buffer at once
        return dict.fromkeys(self.readers, BroadcastBucket(index, self._group.spec.name))

    def transmit(self, pending: PendingReplies) -> None:
        _while_watching(pending, lambda: self._group.broadcast(self._sending))

    def rest(self) -> None:
        platform = platform_of(self._device)
        if platform.is_accelerator:
            self._buffers = [torch.empty(0, dtype=torch.uint8, device=self._device) for _ in range(2)]
            self._sending = self._buffers[0]
            platform.empty_cache()

    def close(self) -> None:
        self._group.close()


class FileRouteSender(RouteSender):
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


def make_routes(peers: Peers, plan: SendPlan, rank: int, device: torch.device) -> Iterator[RouteSender]:
    if readers := plan.readers("memory", rank):
        yield MemoryRouteSender(readers)
    if readers := plan.readers("cuda_ipc", rank):
        yield CudaIpcRouteSender(readers, device)
    if readers := plan.readers("file", rank):
        if plan.directory is None:
            raise StrategyError("the file route needs a directory that trainer and engines see")
        yield FileRouteSender(readers, plan.directory)
    if readers := plan.readers("broadcast", rank):
        yield BroadcastRouteSender(readers, plan, device, peers)


def _wait_for_copies(bucket: WeightBucket) -> None:
    """Waits until what was copied out of the bucket's tensors is there."""
    for device_type in {tensor.device.type for _, tensor in bucket}:
        platform_of(torch.device(device_type)).synchronize()


def _at_least(buffer: torch.Tensor, num_bytes: int, device: torch.device) -> torch.Tensor:
    return buffer if len(buffer) >= num_bytes else torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _while_watching(pending: PendingReplies, work: Callable[[], None]) -> None:
    """Runs blocking `work` in a thread and raises as soon as a call in `pending` fails."""
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


# The sending ranks' side of a weight sync: every rank fills the buffers of its own readers, and one of them, the lead,
# tells the engines where to read. They read one bucket while the next is gathered. No Ray here.

_BUCKETS_AHEAD = 2  # drawn before the first one is announced: itself, and the one to be written meanwhile
Filled = dict[Reader, BucketPlace]


class WeightSender:
    """Sends a stream of buckets to all receivers. Keeps groups between calls, and buffers that lie in host memory."""

    def __init__(self, rank: int, device: torch.device):
        self._rank = rank
        self._device = device
        self._plan: SendPlan | None = None
        self._routes: list[RouteSender] = []
        self._meetings: dict[tuple[int, ...], Meeting] = {}
        self.sent_bytes = 0  # of the weights in the last update, whatever their receivers are

    def send(
        self, buckets: Iterator[WeightBucket], peers: Peers, plan: SendPlan, version: int, whole: bool = True
    ) -> list[int] | None:
        """Every rank of the trainer calls it. Returns on the lead the versions that the receivers report at the end,
        None elsewhere and after the failure of another rank. Raises as soon as a receiver fails (on the lead), or what
        this rank cannot do. In any case the buckets are drawn to the end, since that is collective.

        While the receivers read bucket k, bucket k + 1 is written and bucket k + 2 is gathered. `whole`: for the
        receivers, whether these are all the weights.
        """
        if plan.senders not in self._meetings:
            self._meetings[plan.senders] = Meeting(plan.senders)
        rounds = Rounds(buckets, self._meetings[plan.senders])
        if self._rank not in plan.senders:
            rounds.finish()
            return None
        try:
            return self._send(rounds, peers, plan, version, whole)
        except OtherRankFailed:
            self.close()
            rounds.finish()
            return None
        except Exception as error:
            rounds.give_up(error)  # first: engines may still read what was announced
            self.close()
            with suppress(Exception):  # a consequence
                rounds.finish()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for route in self._routes:
            route.close()
        self._routes, self._plan = [], None

    def _send(self, rounds: Rounds, peers: Peers, plan: SendPlan, version: int, whole: bool) -> list[int] | None:
        """The last meeting is for the lead to say that the last bucket was read."""
        routes = self._open(peers, plan)
        bucket = rounds.next_bucket()
        if bucket is None:
            raise StrategyError("the trainer exports no weights")
        pending: PendingReplies | None = None
        number = self.sent_bytes = 0
        for number in count():
            index = index_bucket(bucket)
            self.sent_bytes += sum(entry.num_bytes for entry in index.entries)
            mine = {
                reader: place for route in routes for reader, place in route.write(bucket, index, number % 2).items()
            }
            bucket = rounds.next_bucket()
            if pending is not None:
                pending.result()
            filled = rounds.meet(mine)
            if number > 0:
                _after(routes, 1 - number % 2)
            if self._rank == plan.lead:
                last_version = version if bucket is None else None
                sources = _sources(plan, filled)
                pending = peers.start(
                    "receive_weights", {i: (source, number == 0, last_version, whole) for i, source in sources.items()}
                )
                for route in routes:
                    route.transmit(pending)
            if bucket is None:
                break
        versions = None if pending is None else pending.result()
        rounds.meet({}, is_last=True)
        _after(routes, number % 2)
        for route in routes:
            route.rest()
        return versions

    def _open(self, peers: Peers, plan: SendPlan) -> list[RouteSender]:
        if plan != self._plan:
            self.close()
            self._routes = list(make_routes(peers, plan, self._rank, self._device))
            self._plan = plan
        return self._routes


class OtherRankFailed(Exception):
    """Another sending rank has given up, and reports why itself."""


class Meeting:
    """Exchanges what the sending ranks have filled, by gloo. All ranks of the trainer must create it."""

    def __init__(self, ranks: Sequence[int]):
        self._ranks = ranks
        self._group = dist.new_group(list(ranks), backend="gloo") if len(ranks) > 1 else None

    @property
    def is_alone(self) -> bool:
        return len(self._ranks) == 1

    def exchange(self, report: Filled | str) -> list[Filled | str]:
        if self._group is None:
            return [report]
        reports: list[Any] = [None] * len(self._ranks)
        dist.all_gather_object(reports, report, group=self._group)
        return reports


class Rounds:
    """Buckets of one update and meetings of the ranks that send them, in one order on all of them. Drawing a bucket is
    collective, too, so who fails on the way goes on to the next meeting to say so, and nobody waits for it."""

    def __init__(self, buckets: Iterator[WeightBucket], meeting: Meeting):
        self._buckets, self._meeting = buckets, meeting
        self._num_drawn = self._num_meetings = 0
        self._is_over = False  # there is nothing to say to the others any more, or no way

    def next_bucket(self) -> WeightBucket | None:
        self._is_over = True  # unless it succeeds
        bucket = next(self._buckets, None)
        self._is_over = False
        self._num_drawn += 1
        return bucket

    def meet(self, filled: Filled, is_last: bool = False) -> Filled:
        """Exchange with all ranks what they have filled since. Raises OtherRankFailed if one has given up."""
        reports = self._exchange(filled)
        self._is_over = is_last
        if any(isinstance(report, str) for report in reports):
            raise OtherRankFailed
        return {reader: source for report in reports if isinstance(report, dict) for reader, source in report.items()}

    def give_up(self, error: Exception) -> None:
        """Tells the others, if there are any. A failure on the way is a consequence."""
        if self._is_over or self._meeting.is_alone:
            return
        with suppress(Exception):
            while self._num_drawn < self._num_meetings + _BUCKETS_AHEAD:
                self.next_bucket()
            self._exchange(describe(error))

    def finish(self) -> None:
        for _ in self._buckets:
            pass

    def _exchange(self, report: Filled | str) -> list[Filled | str]:
        self._is_over = True
        reports = self._meeting.exchange(report)
        self._is_over = False
        self._num_meetings += 1
        return reports


def _sources(plan: SendPlan, filled: Mapping[Reader, BucketPlace]) -> dict[int, BucketSource]:
    """The source that each receiver reads: one place for all its ranks, or one for each."""
    sources: dict[int, BucketSource] = {}
    for receiver, way in enumerate(plan.ways):
        places = tuple(filled[receiver, rank] for rank in range(len(way.senders)))
        shared = all(place == places[0] for place in places)
        sources[receiver] = places[0] if shared else RankedBucket(places)
    return sources


def _after(routes: Sequence[RouteSender], turn: int) -> None:
    for route in routes:
        route.after(turn)
