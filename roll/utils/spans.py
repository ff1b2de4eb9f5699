"""Intervals in which the processes of a run did things, in memory, and the file that shows it."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_EVENTS = 1_000_000  # about 200 MB, hours of a run


class Interval(NamedTuple):
    """Interval in seconds of `time.perf_counter`, on one line: there they lie one after, or in, the other."""

    process: str  # a role
    thread: str  # a rank of it
    name: str
    started: float
    ended: float

    def shifted(self, seconds: float) -> "Interval":
        return self._replace(started=self.started + seconds, ended=self.ended + seconds)


def wall_offset() -> float:
    """Seconds from this process's `time.perf_counter` to the wall clock, which all machines of a run have in common."""
    return time.time() - time.perf_counter()


class Spans:
    """A ring buffer of intervals, filled by any thread; with capacity 0 it is off."""

    def __init__(self, capacity: int = MOST_EVENTS):
        self.is_on = capacity > 0
        self._intervals: deque[Interval] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def add(self, *intervals: Interval) -> None:
        with self._lock:
            self._intervals.extend(intervals)

    def take(self) -> list[Interval]:
        with self._lock:
            taken = list(self._intervals)
            self._intervals.clear()
        return taken


def write_chrome_trace(path: Path, intervals: Iterable[Interval]) -> None:
    """Write the file that Perfetto shows, whole or not at all: a process per role, a thread per rank, in
    microseconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms",\n"traceEvents": [\n')
        for number, entry in enumerate(_entries(list(intervals))):
            file.write((",\n" if number else "") + json.dumps(entry, separators=(",", ":")))
        file.write("\n]}\n")
    aside.replace(path)


def _entries(intervals: list[Interval]) -> Iterator[dict[str, Any]]:
    first = min((interval.started for interval in intervals), default=0.0)
    processes = {name: pid for pid, name in enumerate(dict.fromkeys(each.process for each in intervals), 1)}
    threads = {key: tid for tid, key in enumerate(dict.fromkeys((each.process, each.thread) for each in intervals), 1)}
    for process, pid in processes.items():
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process}}
    for (process, thread), tid in threads.items():
        yield {"ph": "M", "pid": processes[process], "tid": tid, "name": "thread_name", "args": {"name": thread}}
    for each in intervals:
        start, end = (round((moment - first) * 1e6, 3) for moment in (each.started, each.ended))
        ids = {"pid": processes[each.process], "tid": threads[each.process, each.thread]}
        yield {"ph": "X", **ids, "name": each.name, "ts": start, "dur": max(0.0, round(end - start, 3))}
