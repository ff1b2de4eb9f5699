"""How the weights of an update reach every engine: plain data that travels to the sending rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roll.utils.network import LOOPBACK

Route = Literal["memory", "cuda_ipc", "broadcast", "file"]


@dataclass(frozen=True)
class SendPlan:
    """How each receiver gets its buckets. `num_ranks[i]`: processes of receiver i that read. `address`: where the
    sender can be reached, for broadcast. `directory`: seen by all, for files."""

    routes: tuple[Route, ...]
    num_ranks: tuple[int, ...]
    backend: Literal["gloo", "nccl"] = "gloo"
    address: str = LOOPBACK
    directory: Path | None = None
    generation: int = 0  # another one for other processes behind the same receivers

    def on(self, route: Route) -> list[int]:
        return [i for i, r in enumerate(self.routes) if r == route]
