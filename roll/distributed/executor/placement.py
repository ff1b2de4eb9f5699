"""Turns on shared devices: which states of which clusters are on the devices now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from roll.distributed.executor.processes.cluster import Calls, Cluster, wait_all
from roll.distributed.executor.rollout.engine_recovery import EngineRecovery
from roll.distributed.strategy.base import ALL_STATES, State

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """These states of a cluster are needed on its devices."""

    cluster: Cluster
    states: frozenset[State] = ALL_STATES


class Placement:
    """Moves states between devices and host memory where device mappings overlap. On disjoint devices it calls nobody.

    States stay where they are until somebody else needs the room: two turns of the same cluster in a row move nothing.
    """

    def __init__(self, clusters: Sequence[Cluster], recoveries: Mapping[Cluster, EngineRecovery] | None = None):
        """`recoveries`: of clusters whose workers may be restarted, which brings all states back."""
        self._recoveries = recoveries or {}
        self._resident = {cluster: frozenset[State]() for cluster in clusters}
        self._setups: dict[Cluster, Callable[[], Calls]] = {}
        self._started: dict[Cluster, Calls] = {}

    def start_setup(self, setups: Mapping[Cluster, Callable[[], Calls]], one_by_one: bool) -> None:
        """Begins the set-up of every cluster, which loads all its states. With `one_by_one`, clusters that share
        devices take turns in it, each making room for the next; else (the devices are host memory) all go at once."""
        self._setups = dict(setups)
        self._started = {c: setup() for c, setup in setups.items() if not (one_by_one and self._shares(c))}

    def finish_setup(self) -> dict[Cluster, list[Any]]:
        """Returns when all are set up, with their replies. Raises WorkerError as soon as a worker cannot be."""
        replies: dict[Cluster, list[Any]] = {}
        started = time.monotonic()

        def say(call: Calls) -> None:
            what = "processes are up" if call.method == "start" else "models are loaded"
            logger.info("%s: %s (%d, after %.1f s)", call.role, what, len(call.refs), time.monotonic() - started)

        for cluster, setup in self._setups.items():
            if cluster not in self._started:
                _, replies[cluster] = wait_all([cluster.ready, setup()], on_done=say)
                self._resident[cluster] = ALL_STATES
                self._move([], [Claim(cluster)])
        ready = [cluster.ready for cluster in self._started]
        answers = wait_all([*ready, *self._started.values()], on_done=say)[len(ready) :]
        for cluster, answer in zip(self._started, answers, strict=True):
            replies[cluster] = answer
            self._resident[cluster] = ALL_STATES
        return replies

    @contextmanager
    def hold(self, *claims: Claim) -> Iterator[None]:
        """Inside, the claimed states are on the devices, and nothing else is where two clusters share them."""
        wanted = {claim.cluster: claim.states for claim in claims}
        offloads, loads = [], []
        for cluster, resident in self._resident.items():
            needed = wanted.get(cluster, frozenset())
            crowded = any(_overlap(cluster, other) for other in wanted if other is not cluster)
            if crowded and (surplus := resident - needed):
                offloads.append(Claim(cluster, surplus))
            if missing := needed - resident:
                loads.append(Claim(cluster, missing))
        self._move(loads, offloads)
        yield

    def _shares(self, cluster: Cluster) -> bool:
        return any(_overlap(cluster, other) for other in self._resident if other is not cluster)

    def _move(self, loads: Sequence[Claim], offloads: Sequence[Claim]) -> None:
        """Offloads all, then loads all."""
        wait_all([self._start("offload_states", claim) for claim in offloads])
        for claim in offloads:
            self._resident[claim.cluster] -= claim.states
        wait_all([self._start("load_states", claim) for claim in loads])
        for claim in loads:
            self._resident[claim.cluster] |= claim.states

    def _start(self, method: str, claim: Claim) -> Calls:
        recovery = self._recoveries.get(claim.cluster)
        if recovery is None:
            return claim.cluster.start_all(method, claim.states)
        recovery.notice()
        return claim.cluster.workers.start(method, dict.fromkeys(recovery.serving(), (claim.states,)))


def _overlap(one: Cluster, other: Cluster) -> bool:
    devices = {device for seat in one.seats for device in seat.devices}
    return any(device in devices for seat in other.seats for device in seat.devices)
