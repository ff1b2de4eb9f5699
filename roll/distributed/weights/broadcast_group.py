"""A broadcast group beside torch.distributed's own: one sender, and receivers that may come and go."""

import threading
import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, TCPStore

from roll.distributed.weights.bucket import GroupSpec
from roll.errors import StrategyError
from roll.platforms.stores import open_store
from roll.platforms.table import platform_of

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.005  # between two looks whether a bucket has come
_SENDER_LOOK_S = 0.5  # between two looks whether its sender is still there


class BroadcastGroup:
    """One sender (rank 0) and its receivers, outside torch.distributed's default group. The constructor returns when
    all are in. StrategyError on a receiver if the sender is gone or does not wait any more (`give_up`)."""

    def __init__(
        self, spec: GroupSpec, rank: int, device: torch.device, store: TCPStore | None = None, timeout_s: float = 300
    ):
        self.spec, self.rank, self.device, self._platform = spec, rank, device, platform_of(device)
        if spec.backend != self._platform.communication_backend:
            raise StrategyError(f"unknown broadcast backend {spec.backend!r} for a device {device}")
        timeout = timedelta(seconds=timeout_s)
        self._store = store or TCPStore(spec.host, spec.port, timeout=timeout, wait_for_workers=False)
        self._group: ProcessGroup | None = None
        self._wait_for_all(timeout_s)
        prefixed = PrefixStore(spec.name, self._store)
        self._group = self._platform.new_process_group(prefixed, rank, spec.world_size, timeout, device)

    @staticmethod
    def open_store(host: str, timeout_s: float = 300) -> TCPStore:
        """The sender's meeting point on a free port (`.port`) of that address."""
        return open_store(host, timeout_s)

    @staticmethod
    def give_up(spec: GroupSpec, timeout_s: float = 300) -> None:
        """The sender's word that nobody need wait any more, by a connection of its own: a call that waits holds the
        store's."""
        store = TCPStore(spec.host, spec.port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
        store.set(_timed_out(spec), "")

    def _wait_for_all(self, timeout_s: float) -> None:
        """Waits until all are in, or the sender gives up; the backend would wait until the time limit."""
        members, deadline = f"{self.spec.name} members", time.monotonic() + timeout_s
        try:
            present = self._store.add(members, 1)
            while present < self.spec.world_size:
                if self._sender_is_gone():
                    raise self._abandoned()
                if time.monotonic() > deadline:
                    raise StrategyError(
                        f"broadcast group {self.spec.name!r}: {present} of {self.spec.world_size} members joined "
                        f"within {timeout_s:g} s"
                    )
                time.sleep(_LONGEST_PAUSE_S)
                present = self._store.add(members, 0)
        except RuntimeError as error:  # the store is in the sender's process
            raise self._abandoned() from error

    def _abandoned(self) -> StrategyError:
        return StrategyError(f"broadcast group {self.spec.name!r}: its sender has closed it, or has ended")

    def start_broadcast(self, flat: torch.Tensor) -> torch.distributed.Work:
        """Begins to send (rank 0) or to fill `flat`, on `self.device`; `.wait()` ends it."""
        if self._group is None:
            raise StrategyError(f"broadcast group {self.spec.name!r} is closed")
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self._group.broadcast([flat], options)

    def broadcast(self, flat: torch.Tensor) -> None:
        """Returns when `flat` is sent or filled. A receiver gives up when the sender has: a kernel of NCCL that waits
        for it would go on until the time limit, and take its process along then. StrategyError in that case."""
        work = self.start_broadcast(flat)
        if self.rank > 0:
            self._wait_while_there_is_a_sender(work)
        work.wait()
        self._platform.wait_for_stream(self.device)  # NCCL's wait only orders streams

    def _wait_while_there_is_a_sender(self, work: torch.distributed.Work) -> None:
        pause_s, next_look = _SHORTEST_PAUSE_S, time.monotonic() + _SENDER_LOOK_S
        while not work.is_completed():
            if time.monotonic() > next_look:
                if self._sender_is_gone():
                    self.close()
                    raise self._abandoned()
                next_look = time.monotonic() + _SENDER_LOOK_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _sender_is_gone(self) -> bool:
        try:
            return self._store.check([_timed_out(self.spec)])
        except RuntimeError:  # the store is in the sender's process
            return True

    def close(self) -> None:
        """Does not wait for a broadcast under way, of which another member may never take its part."""
        if self.rank == 0:
            self._store.set(_timed_out(self.spec), "")
        group, self._group = self._group, None
        if group is not None and not self._platform.abort(group):
            # The last reference to a gloo group waits for what is under way, up to the time limit.
            last = [group]
            del group
            threading.Thread(target=last.clear, daemon=True, name="broadcast group end").start()


def _timed_out(spec: GroupSpec) -> str:
    """A key of the group's store that is there once the sender has closed the group."""
    return f"{spec.name} is given up"
