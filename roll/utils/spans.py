"""Newest events of a run and their times, in memory."""

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MOST_EVENTS = 1_000_000  # about 200 MB, hours of a run


class Interval(NamedTuple):
    """Interval from `started` to `ended`, in seconds, on one line of the picture. Intervals of a line lie one after the
    other, or one in the other."""

    process: str  # a role
    thread: str  # a rank of it
    name: str
    started: float
    ended: float
    details: Mapping[str, object] = {}


class Mark(NamedTuple):
    """A stage that group `number` reached. `STAGES` says what it does from then on."""

    number: int
    stage: str
    at: float


class Level(NamedTuple):
    """A count that has this value from now on, as of the answers that an engine works on."""

    process: str
    name: str
    at: float
    value: float


Event = Interval | Mark | Level

STAGES: Mapping[str, str | None] = {
    "admitted": "waiting for an engine",
    "begun": "sampling",
    "first token": "sampling further",
    "generated": "scoring",
    "scored": "waiting for its step",
    "taken": "training",
    "trained": "waiting for the publish",
    "published": None,
    "dropped": None,
}
"""Activity of a group from each stage on; None: the group is done."""


class Spans:
    """A ring buffer of events, filled by any thread. With capacity 0 it is off, and what it is told costs a comparison.

    The clock is `time.perf_counter`, which all processes of one Linux machine share; what another machine recorded is
    `shifted` by the distance of the clocks (`ClockOffset`). A simulator gives its own clock.
    """

    def __init__(self, capacity: int = MOST_EVENTS, clock: Callable[[], float] = time.perf_counter):
        self.is_on = capacity > 0
        self.clock = clock
        self._events: deque[Event] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._num_added = 0

    def add(self, event: Event) -> None:
        if self.is_on:
            with self._lock:
                self._events.append(event)
                self._num_added += 1

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(event)

    @contextmanager
    def span(self, process: str, thread: str, name: str, **details: object) -> Iterator[None]:
        """Record what happens inside as an interval, also if it raises."""
        started = self.clock()
        try:
            yield
        finally:
            self.add(Interval(process, thread, name, started, self.clock(), details))

    def mark(self, number: int, stage: str) -> None:
        """Group `number` reaches this one of the `STAGES` now."""
        if self.is_on:
            self.add(Mark(number, stage, self.clock()))

    def level(self, process: str, name: str, value: float) -> None:
        if self.is_on:
            self.add(Level(process, name, self.clock(), value))

    @property
    def num_lost(self) -> int:
        """Events that newer ones have pushed out."""
        with self._lock:
            return self._num_added - len(self._events)

    def events(self) -> list[Event]:
        """Return the recorded events, in the order in which they were added."""
        with self._lock:
            return list(self._events)

    def take(self) -> list[Event]:
        """Return all that is there, and forget it."""
        with self._lock:
            taken = list(self._events)
            self._events.clear()
            self._num_added = 0
        return taken


def shifted(event: Event, seconds: float) -> Event:
    """The event on a clock that is this much ahead of the one that it was recorded with."""
    if isinstance(event, Interval):
        return event._replace(started=event.started + seconds, ended=event.ended + seconds)
    return event._replace(at=event.at + seconds)


@dataclass
class ClockOffset:
    """How far another process's clock is behind ours, from calls whose reply says what it showed there.

    The reply was made between the question and the answer, so the middle of the two is wrong by at most half the round
    trip: the shortest one tells most. What that half explains is no offset: processes of one machine share a clock.

    Example: asked at 10.0, answered at 10.2, and the reply says 110.1: 100 s ahead of us, so the offset is -100.
    """

    seconds: float = 0.0
    _round_trip: float = float("inf")

    def learn(self, asked_at: float, answered: float, shown: float) -> None:
        if (round_trip := answered - asked_at) < self._round_trip:
            self._round_trip = round_trip
            offset = (asked_at + answered) / 2 - shown
            self.seconds = offset if abs(offset) > round_trip / 2 else 0.0


# Events as a file that Perfetto (ui.perfetto.dev) and chrome://tracing show: the trace event format, as JSON.
#
# One process per role, one thread per rank; groups are asynchronous events of a process of their own, since many are
# under way at once. Times are microseconds from the first event.

GROUPS = "groups"
_MICROSECONDS = 1e6


def write_chrome_trace(path: Path, events: Iterable[Event], notes: dict[str, str] | None = None) -> None:
    """Writes the file whole or not at all. `notes` are shown with the file's own data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms",\n')
        file.write(f'"otherData": {json.dumps(notes or {})},\n"traceEvents": [\n')
        for number, entry in enumerate(trace_events(list(events))):
            file.write((",\n" if number else "") + json.dumps(entry, separators=(",", ":")))
        file.write("\n]}\n")
    aside.replace(path)


def trace_events(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """The entries of `traceEvents`."""
    first = min((_start(event) for event in events), default=0.0)
    numbers = _Numbers()

    def at(moment: float) -> float:
        return round((moment - first) * _MICROSECONDS, 3)

    entries: list[dict[str, Any]] = []
    lives: defaultdict[int, list[Mark]] = defaultdict(list)
    for event in events:
        match event:
            case Interval():
                pid, tid = numbers.of(event.process, event.thread)
                started = at(event.started)
                entry = {"ph": "X", "pid": pid, "tid": tid, "name": event.name, "ts": started}
                entry["dur"] = max(0.0, round(at(event.ended) - started, 3))
                entries.append(entry | ({"args": dict(event.details)} if event.details else {}))
            case Level():
                pid, _ = numbers.of(event.process, "")
                entry = {"ph": "C", "pid": pid, "tid": 0, "name": event.name, "ts": at(event.at)}
                entries.append(entry | {"args": {"value": event.value}})
            case Mark():
                lives[event.number].append(event)
    for number, marks in lives.items():
        pid, _ = numbers.of(GROUPS, "")
        for phase, name, moment in _life(number, sorted(marks, key=lambda mark: mark.at)):
            head = {"ph": phase, "cat": "group", "id": str(number), "pid": pid, "tid": 0}
            entries.append(head | {"name": name, "ts": at(moment)})
    yield from numbers.names()
    yield from entries


def _life(number: int, marks: Sequence[Mark]) -> Iterator[tuple[str, str, float]]:
    """Begin and end of the group as a whole, and within it of what it did from each stage to the next."""
    marks = [mark for i, mark in enumerate(marks) if not i or mark.stage != marks[i - 1].stage]  # as turn after turn
    yield "b", f"group {number}", marks[0].at
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        yield "n", mark.stage, mark.at
        doing = STAGES.get(mark.stage, mark.stage)
        if doing is not None and following is not None:
            yield "b", doing, mark.at
            yield "e", doing, following.at
    yield "e", f"group {number}", marks[-1].at


def _start(event: Event) -> float:
    return event.started if isinstance(event, Interval) else event.at


class _Numbers:
    """Processes and threads by number, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}

    def of(self, process: str, thread: str) -> tuple[int, int]:
        pid = self._processes.setdefault(process, len(self._processes) + 1)
        return pid, self._threads.setdefault((process, thread), len(self._threads) + 1) if thread else 0

    def names(self) -> Iterator[dict[str, Any]]:
        for process, pid in self._processes.items():
            yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process}}
            yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
        for (process, thread), tid in self._threads.items():
            head = {"ph": "M", "pid": self._processes[process], "tid": tid}
            yield head | {"name": "thread_name", "args": {"name": thread}}
            yield head | {"name": "thread_sort_index", "args": {"sort_index": tid}}
