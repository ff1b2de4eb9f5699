"""Turns on shared devices: which states of which roles are on the devices now."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from roll.distributed.executor.processes.cluster import Calls, wait_all
from roll.distributed.strategy.base import ALL_STATES, State

logger = logging.getLogger(__name__)


class Occupant(Protocol):
    """Owner of states on devices: the workers of a role. Its parts (ranks that compute together, each engine) come and
    go by themselves. Its methods begin what they say, for the parts of these numbers; the caller waits. States are
    whole before the first `offload`."""

    @property
    def role(self) -> str: ...

    @property
    def parts(self) -> Sequence[frozenset[int]]:
        """The devices of each, as global ids; none of a part on CPUs alone."""
        ...

    @property
    def ready(self) -> Calls:
        """Calls that end when every worker is constructed."""
        ...

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        """Moves these states to host memory. What the parts are at stands still until they are back."""
        ...

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls: ...


class Tenant(Occupant, Protocol):
    """Works whenever its devices are free."""

    def hand_over(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        """Moves these states to host memory, if they are not there; parts that stay go on with what these are at."""
        ...


@dataclass(frozen=True)
class Claim:
    """These states of a role are needed on its devices."""

    occupant: Occupant
    states: frozenset[State] = ALL_STATES


@dataclass(frozen=True)
class _Part:
    occupant: Occupant
    number: int
    devices: frozenset[int]


_States = Mapping[_Part, frozenset[State]]


class Placement:
    """Moves states between devices and host memory where device mappings overlap, when another role needs the room.
    Tenants, such as engines whose requests run ahead of training, get their devices back as soon as no claim holds
    them. Parts of a tenant that stay take over the work; if all leave, it waits."""

    def __init__(self, occupants: Sequence[Occupant], background: Sequence[Tenant] = ()):
        self._resident: dict[_Part, frozenset[State]] = {}
        for occupant in occupants:
            self._resident |= dict.fromkeys(_parts_of(occupant), frozenset[State]())
        self._tenants: dict[Occupant, Tenant] = {tenant: tenant for tenant in background}
        self._standing: set[_Part] = set()  # of tenants: away with what they were at
        self._num_holds = 0
        self._reserved: list[frozenset[int]] = []
        self._setups: dict[Occupant, Callable[[], Calls]] = {}
        self._started: dict[Occupant, Calls] = {}

    def join(self, occupant: Occupant) -> None:
        """Takes in a role that was constructed with all its states."""
        self._resident |= dict.fromkeys(_parts_of(occupant), ALL_STATES)

    def start_setup(self, setups: Mapping[Occupant, Callable[[], Calls]], one_by_one: bool) -> None:
        """Begins the set-up of every role, which loads all its states. With `one_by_one`, roles that share devices take
        turns in it, each making room for the next; else (the devices are host memory) all go at once."""
        self._setups = dict(setups)
        self._started = {o: setup() for o, setup in setups.items() if not (one_by_one and self._shared(o))}

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
                self.join(occupant)
                self._offload(dict.fromkeys(self._shared(occupant), ALL_STATES))
        ready = [occupant.ready for occupant in self._started]
        answers = wait_all([*ready, *self._started.values()], on_done=say)[len(ready) :]
        for occupant, answer in zip(self._started, answers, strict=True):
            replies[occupant] = answer
            self.join(occupant)
        return replies

    @contextmanager
    def hold(self, *claims: Claim) -> Iterator[None]:
        """Inside, the claimed states are on the devices, and nothing else is where two roles share them."""
        self._make_room({part: claim.states for claim in claims for part in _parts_of(claim.occupant)})
        self._num_holds += 1
        yield
        self._num_holds -= 1
        self._call_back()

    @contextmanager
    def reserved(self, *claims: Claim) -> Iterator[None]:
        """Keeps tenants off the devices of these claims between the holds inside."""
        self._reserved.append(frozenset().union(*(part for claim in claims for part in claim.occupant.parts)))
        yield
        self._reserved.pop()
        self._call_back()

    def _call_back(self) -> None:
        if self._num_holds:
            return
        busy = frozenset().union(*self._reserved)
        back = [part for tenant in self._tenants for part in _parts_of(tenant) if not part.devices & busy]
        self._make_room(dict.fromkeys(back, ALL_STATES))

    def _make_room(self, wanted: _States) -> None:
        on_device: defaultdict[int, set[Occupant]] = defaultdict(set)
        for part in wanted:
            for device in part.devices:
                on_device[device].add(part.occupant)
        surplus, missing = {}, {}
        for part, resident in self._resident.items():
            needed = wanted.get(part, frozenset())
            is_crowded = any(on_device.get(device, set()) - {part.occupant} for device in part.devices)
            if is_crowded and resident - needed:
                surplus[part] = resident - needed
            if needed - resident:
                missing[part] = needed - resident
        self._offload(surplus)
        self._load(missing)

    def _shared(self, occupant: Occupant) -> list[_Part]:
        others = frozenset().union(*(part.devices for part in self._resident if part.occupant is not occupant))
        return [part for part in _parts_of(occupant) if part.devices & others]

    def _offload(self, surplus: _States) -> None:
        staying = self._staying(surplus)
        calls = []
        for (occupant, states), parts in _together(surplus).items():
            tenant = self._tenants.get(occupant)
            if tenant is None:
                calls.append(occupant.offload(states, _numbers(parts)))
            elif tenant in staying:
                calls.append(tenant.hand_over(states, _numbers(parts)))
            else:
                calls.append(tenant.offload(states, _numbers(parts)))
                self._standing |= {*parts}
        wait_all(calls)
        for part, states in surplus.items():
            self._resident[part] -= states

    def _load(self, missing: _States) -> None:
        """Loads missing states. Then parts that wait hand over to those that are back."""
        wait_all([o.load(states, _numbers(parts)) for (o, states), parts in _together(missing).items()])
        for part, states in missing.items():
            self._resident[part] |= states
        self._standing = {part for part in self._standing if self._resident[part] != ALL_STATES}
        staying = self._staying(dict.fromkeys(self._standing, ALL_STATES))
        late = {part: frozenset[State]() for part in self._standing if part.occupant in staying}
        self._standing -= late.keys()
        moves = _together(late).items()
        wait_all([self._tenants[o].hand_over(nothing, _numbers(parts)) for (o, nothing), parts in moves])

    def _staying(self, leaving: Container[_Part]) -> set[Occupant]:
        """Tenants of which a part works on while these leave."""
        return {
            part.occupant
            for part, resident in self._resident.items()
            if part.occupant in self._tenants and resident == ALL_STATES and part not in leaving
        }


def _parts_of(occupant: Occupant) -> list[_Part]:
    return [_Part(occupant, number, devices) for number, devices in enumerate(occupant.parts)]


def _together(moves: _States) -> dict[tuple[Occupant, frozenset[State]], list[_Part]]:
    by_occupant: defaultdict[tuple[Occupant, frozenset[State]], list[_Part]] = defaultdict(list)
    for part, states in moves.items():
        by_occupant[part.occupant, states].append(part)
    return by_occupant


def _numbers(parts: Iterable[_Part]) -> list[int]:
    return sorted(part.number for part in parts)
