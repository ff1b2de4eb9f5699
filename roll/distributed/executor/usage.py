"""Usage of a run's workers since the last request."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayError

from roll.configs.tables.roles import Use
from roll.distributed.executor.processes.cluster import Cluster, fetch
from roll.types.metrics import SharedWork
from roll.utils.worker_usage import TraceOptions, Usage

_LIMIT_S = 5.0  # a worker that hangs is found by others; it is left out here


@dataclass(frozen=True)
class WorkerUsage:
    rank: int
    devices: tuple[int, ...]
    usage: Usage


@dataclass
class Work:
    """Rows that a role was given. `tokens`: of those that it computed. `pairs`: of a token with itself or an earlier
    one, as attention computes them. `learnt`: tokens in the loss, counted once for all epochs. `shared`: what prefixes
    that rows share have saved."""

    rows: int = 0
    tokens: int = 0
    pairs: float = 0.0
    learnt: int = 0
    shared: SharedWork = field(default_factory=SharedWork)

    @property
    def sharing(self) -> float | None:
        """Tokens of the rows by those computed for them; None where rows share none."""
        return self.shared.row_tokens / self.shared.tokens if self.shared.tokens else None

    @property
    def computed_tokens(self) -> int:
        return self.tokens - (self.shared.row_tokens - self.shared.tokens)

    @property
    def computed_pairs(self) -> float:
        return self.pairs - self.shared.saved_pairs


@dataclass(frozen=True)
class RoleUsage:
    """The workers that answered, and by the name of the call what they were given."""

    role: str
    use: Use
    workers: Sequence[WorkerUsage]
    work: Mapping[str, Work] = field(default_factory=dict)


class UsageRequest:
    """Request for the usage of all workers at once. A worker that is gone, or does not answer, is left out."""

    def __init__(self, clusters: Sequence[Cluster], request: TraceOptions):
        self._sent_s = time.perf_counter()
        self._usages: dict[str, list[WorkerUsage]] = {cluster.role: [] for cluster in clusters}
        self._pending: dict[ray.ObjectRef, tuple[Cluster, int]] = {}
        with suppress(RayError):  # Ray is gone, which others tell
            for cluster in clusters:
                self._pending |= {ref: (cluster, rank) for rank, ref in cluster.ask_usage(request).items()}

    def answers(self) -> dict[str, list[WorkerUsage]]:
        remaining, pending = max(0.0, self._sent_s + _LIMIT_S - time.perf_counter()), list(self._pending)
        with suppress(RayError):
            done, _ = ray.wait(pending, num_returns=len(pending), timeout=remaining) if pending else ([], None)
            for ref in done:
                cluster, rank = self._pending.pop(ref)
                if isinstance(reply := fetch(ref, rank), Usage):
                    self._usages[cluster.role].append(WorkerUsage(rank, tuple(cluster.slots[rank].devices), reply))
        return self._usages
