"""Events as a file that Perfetto (ui.perfetto.dev) and chrome://tracing show: the trace event format, as JSON.

One process per role, one thread per rank; groups are asynchronous events of a process of their own, since many are
under way at once. Times are microseconds from the first event.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from roll.utils.spans import STAGES, Event, Interval, Level, Mark

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
