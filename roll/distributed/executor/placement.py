"""Turns on shared devices: which states of which roles are on the devices now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from roll.distributed.executor.processes.cluster import Calls, wait_all
from roll.distributed.strategy.base import ALL_STATES, State

logger = logging.getLogger(__name__)


class Occupant(Protocol):
    """What has states on devices: the workers of a role, be they a cluster, engines or a pool. Its methods begin what
    they say; the caller waits. States are whole before the first `offload`, in whatever part each worker has of
    them."""

    @property
    def role(self) -> str: ...

    @property
    def devices(self) -> frozenset[int]:
        """Global ids; empty for a role on CPUs alone."""
        ...

    @property
    def ready(self) -> Calls:
        """That every worker is constructed."""
        ...

    def offload(self, states: frozenset[State]) -> Calls:
        """Moves these states to host memory."""
        ...

    def load(self, states: frozenset[State]) -> Calls:
        """Brings them back."""
        ...


@dataclass(frozen=True)
class Claim:
    """These states of a role are needed on its devices."""

    occupant: Occupant
    states: frozenset[State] = ALL_STATES


class Placement:
    """Moves states between devices and host memory where device mappings overlap. On disjoint devices it calls nobody.

    States stay where they are until somebody else needs the room: two turns of the same role in a row move nothing.
    Roles that work in the background, as engines do whose requests run ahead of training, get their devices back as
    soon as nobody holds them.
    """

    def __init__(self, occupants: Sequence[Occupant], background: Sequence[Occupant] = ()):
        self._resident = {occupant: frozenset[State]() for occupant in occupants}
        self._background = tuple(background)
        self._num_holds = 0
        self._kept_free: list[frozenset[int]] = []
        self._setups: dict[Occupant, Callable[[], Calls]] = {}
        self._started: dict[Occupant, Calls] = {}

    def join(self, occupant: Occupant) -> None:
        """Takes in a role that was constructed with all its states."""
        self._resident[occupant] = ALL_STATES

    def start_setup(self, setups: Mapping[Occupant, Callable[[], Calls]], one_by_one: bool) -> None:
        """Begins the set-up of every role, which loads all its states. With `one_by_one`, roles that share devices take
        turns in it, each making room for the next; else (the devices are host memory) all go at once."""
        self._setups = dict(setups)
        self._started = {o: setup() for o, setup in setups.items() if not (one_by_one and self._shares(o))}

    def finish_setup(self) -> dict[Occupant, list[Any]]:
        """Returns when all are set up, with their replies. Raises WorkerError as soon as a worker cannot be."""
        replies: dict[Occupant, list[Any]] = {}
        started = time.monotonic()

        def say(call: Calls) -> None:
            what = "processes are up" if call.method == "start" else "models are loaded"
            logger.info("%s: %s (%d, after %.1f s)", call.role, what, len(call.refs), time.monotonic() - started)

        for occupant, setup in self._setups.items():
            if occupant not in self._started:
                _, replies[occupant] = wait_all([occupant.ready, setup()], on_done=say)
                self._resident[occupant] = ALL_STATES
                self._move([], [Claim(occupant)])
        ready = [occupant.ready for occupant in self._started]
        answers = wait_all([*ready, *self._started.values()], on_done=say)[len(ready) :]
        for occupant, answer in zip(self._started, answers, strict=True):
            replies[occupant] = answer
            self._resident[occupant] = ALL_STATES
        return replies

    @contextmanager
    def hold(self, *claims: Claim) -> Iterator[None]:
        """Inside, the claimed states are on the devices, and nothing else is where two roles share them."""
        self._make_room(claims)
        self._num_holds += 1
        yield
        self._num_holds -= 1
        self._call_back()

    @contextmanager
    def kept_free(self, *claims: Claim) -> Iterator[None]:
        """Between the holds inside, nobody who works in the background comes back to the devices of these: what is one
        turn of theirs moves nothing twice."""
        self._kept_free.append(frozenset().union(*(claim.occupant.devices for claim in claims)))
        yield
        self._kept_free.pop()
        self._call_back()

    def _call_back(self) -> None:
        """Who works in the background comes back to devices that are free."""
        if self._num_holds:
            return
        busy = frozenset().union(*self._kept_free)
        self._make_room([Claim(occupant) for occupant in self._background if not occupant.devices & busy])

    def _make_room(self, claims: Sequence[Claim]) -> None:
        wanted = {claim.occupant: claim.states for claim in claims}
        offloads, loads = [], []
        for occupant, resident in self._resident.items():
            needed = wanted.get(occupant, frozenset())
            crowded = any(_overlap(occupant, other) for other in wanted if other is not occupant)
            if crowded and (surplus := resident - needed):
                offloads.append(Claim(occupant, surplus))
            if missing := needed - resident:
                loads.append(Claim(occupant, missing))
        self._move(loads, offloads)

    def _shares(self, occupant: Occupant) -> bool:
        return any(_overlap(occupant, other) for other in self._resident if other is not occupant)

    def _move(self, loads: Sequence[Claim], offloads: Sequence[Claim]) -> None:
        """Offloads all, then loads all."""
        wait_all([claim.occupant.offload(claim.states) for claim in offloads])
        for claim in offloads:
            self._resident[claim.occupant] -= claim.states
        wait_all([claim.occupant.load(claim.states) for claim in loads])
        for claim in loads:
            self._resident[claim.occupant] |= claim.states


def _overlap(one: Occupant, other: Occupant) -> bool:
    return bool(one.devices & other.devices)
