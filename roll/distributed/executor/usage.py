"""What the workers of a run did since somebody asked last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayError

from roll.configs.roles import Use
from roll.distributed.executor.processes.cluster import Cluster, fetch
from roll.utils.meter import Look, Usage

_LIMIT_S = 5.0  # a worker that hangs is found by others; it is left out here


@dataclass(frozen=True)
class WorkerUsage:
    """`asked` and `answered`: our own clock, around the usage's."""

    rank: int
    devices: tuple[int, ...]
    usage: Usage
    asked: float = 0.0
    answered: float = 0.0


@dataclass
class Work:
    """Rows that a role went through: their tokens, and the pairs of a token with itself or one before it, which is what
    attention computes. `learnt`: tokens that the loss was about, once however many epochs there were."""

    rows: int = 0
    tokens: int = 0
    pairs: float = 0.0
    learnt: int = 0


@dataclass(frozen=True)
class RoleUsage:
    """The workers that answered, and by the name of the call what they were given."""

    role: str
    use: Use
    workers: Sequence[WorkerUsage]
    work: Mapping[str, Work] = field(default_factory=dict)


def ask(clusters: Sequence[Cluster], look: Look) -> dict[str, list[WorkerUsage]]:
    """By role. All are asked at once; one that is gone, or does not answer, is left out."""
    asked = time.perf_counter()
    try:
        pending = {ref: (cluster, rank) for cluster in clusters for rank, ref in cluster.ask_usage(look).items()}
        found: dict[str, list[WorkerUsage]] = {cluster.role: [] for cluster in clusters}
        while pending:
            left = max(0.0, asked + _LIMIT_S - time.perf_counter())
            # the time of each answer is worth a wait of its own only where it tells how far a clock is away
            done, _ = ray.wait(list(pending), num_returns=1 if look.trace else len(pending), timeout=left)
            answered = time.perf_counter()
            for ref in done:
                cluster, rank = pending.pop(ref)
                reply = fetch(ref, rank)
                if isinstance(reply, Usage):
                    found[cluster.role].append(
                        WorkerUsage(rank, tuple(cluster.seats[rank].devices), reply, asked, answered)
                    )
            if not done:
                break
    except RayError:  # Ray is gone, which others tell
        return {}
    return found
