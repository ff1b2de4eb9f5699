"""Whether a trace keeps to the trace event format as Perfetto's importer reads it (the "Trace Event Format" document,
JSON Object Format)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float)},
    "M": {"name": str, "pid": int, "args": dict},
}
_ROUNDING_US = 0.01


def problems_of(trace: Mapping[str, Any]) -> list[str]:
    """What an importer would refuse or show wrongly; [] for a good file."""
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        return ["traceEvents is no list"]
    problems = [problem for number, event in enumerate(events) for problem in _fields(number, event)]
    return problems or [*_names(events), *_nesting(events)]


def _fields(number: int, event: Mapping[str, Any]) -> Iterator[str]:
    needed = _NEEDED.get(event.get("ph", ""))
    if needed is None:
        yield f"event {number}: phase {event.get('ph')!r}"
        return
    for key, kind in needed.items():
        if not isinstance(event.get(key), kind):
            yield f"event {number} ({event['ph']}): {key} is {event.get(key)!r}"
    for key in ("ts", "dur"):
        if isinstance(event.get(key), int | float) and event[key] < 0:
            yield f"event {number}: {key} is negative"


def _names(events: list[Mapping[str, Any]]) -> Iterator[str]:
    """Every process and thread that something happens on has one name, and no two share a number."""
    named = [(e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M" and e["name"].endswith("_name")]
    if len(named) != len(set(named)):
        yield "a process or thread is named twice"
    processes = {pid for name, pid, _ in named if name == "process_name"}
    if unnamed := {e["pid"] for e in events} - processes:
        yield f"processes {unnamed} have no name"


def _nesting(events: list[Mapping[str, Any]]) -> Iterator[str]:
    """Complete events of a thread lie one after the other, or one in the other."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for thread, found in threads.items():
        open_ends: list[float] = []
        for event in sorted(found, key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= event["ts"] + _ROUNDING_US:
                open_ends.pop()
            end = event["ts"] + event["dur"]
            if open_ends and end > open_ends[-1] + _ROUNDING_US:
                yield f"thread {thread}: {event['name']} at {event['ts']} crosses the end of another"
            open_ends.append(end)
