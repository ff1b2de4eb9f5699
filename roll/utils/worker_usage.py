"""How a worker spends its time."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roll.utils.spans import Interval, Spans, wall_offset

IDLE = "idle"


@dataclass(frozen=True)
class TraceOptions:
    """Options of what a worker records beside its sums: events, and pictures of its GPU's memory in `snapshots`."""

    trace: bool = False
    snapshots: str = ""


@dataclass(frozen=True)
class Usage:
    """Usage of a worker since the last report: its seconds by state, which add up to the time that has passed, and what
    it counted. Bytes are the most so far; those of a device since the last time, None where it has none. `wall_offset`:
    from the clock of `events` to the wall clock."""

    seconds: Mapping[str, float]
    counts: Mapping[str, float]
    events: tuple[Interval, ...] = ()
    wall_offset: float = 0.0
    host_bytes: int = 0
    device_bytes: int | None = None
    device_name: str = ""

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    def fraction(self, *states: str) -> float:
        """The share of its time in these states, from 0 to 1."""
        wall = self.wall_s
        return sum(self.seconds.get(state, 0.0) for state in states) / wall if wall > 0 else 0.0


class Meter:
    """A worker is in one state at a time, from the beginning on in `IDLE`. Any thread may tell it."""

    def __init__(self, process: str, thread: str, clock: Callable[[], float] = time.perf_counter):
        self._process, self._thread, self._clock = process, thread, clock
        self._spans = Spans(0)
        self._lock = threading.Lock()
        self._state = IDLE
        self._since = self._counted_to = clock()  # in this state; in the sums
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)

    def go(self, state: str) -> None:
        with self._lock:
            if state == self._state:
                return
            now = self._clock()
            self._seconds[self._state] += now - self._counted_to
            if self._state != IDLE and self._spans.is_on:
                self._spans.add(Interval(self._process, self._thread, self._state, self._since, now))
            self._state, self._since, self._counted_to = state, now, now

    def count(self, name: str, value: float) -> None:
        with self._lock:
            self._counts[name] += value

    def take(self, trace: bool = False) -> Usage:
        """Return the usage since the last call. With `trace`, events come with the next ones."""
        with self._lock:
            now = self._clock()
            self._seconds[self._state] += now - self._counted_to
            seconds, counts = dict(self._seconds), dict(self._counts)
            self._counted_to = now
            self._seconds.clear()
            self._counts.clear()
            events = tuple(self._spans.take())
            if trace and not self._spans.is_on:
                self._spans = Spans()
        return Usage(seconds, counts, events, wall_offset())
