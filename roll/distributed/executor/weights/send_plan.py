"""How the weights of an update reach every engine: plain data that travels to the sending ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from roll.utils.network import LOOPBACK

Route = Literal["memory", "cuda_ipc", "broadcast", "file"]
Reader = tuple[int, int]  # (receiver, one of its ranks)


@dataclass(frozen=True)
class EngineRoute:
    """How one engine is reached: `senders[r]` is the trainer's rank that fills the buffers which rank r reads."""

    route: Route
    senders: tuple[int, ...]


@dataclass(frozen=True)
class Sent:
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
