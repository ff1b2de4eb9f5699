import json
from pathlib import Path
from typing import Any

from roll.utils.spans import Event, Interval, Level, Mark, write_chrome_trace
from tests.helpers.trace_format import problems_of


def written(path: Path, events: list[Event]) -> dict[str, Any]:
    write_chrome_trace(path, events)
    return json.loads(path.read_text())


def test_a_trace_keeps_to_the_format_and_has_a_process_per_role_and_a_thread_per_rank(tmp_path: Path):
    trace = written(
        tmp_path / "sub" / "trace.json",
        [
            Interval("driver", "steps", "rollout", 5.0, 7.0),
            Interval("driver", "steps", "reward", 6.0, 6.5),
            Interval("actor_train", "rank 0", "train", 7.0, 8.5, {"tokens": 30}),
            Interval("actor_train", "rank 1", "train", 7.0, 8.25),
            Level("actor_infer", "rank 0 answers", 5.5, 4.0),
            Mark(12, "admitted", 5.0),
            Mark(12, "begun", 5.25),
            Mark(12, "generated", 6.0),
            Mark(12, "scored", 6.5),
            Mark(12, "taken", 7.0),
            Mark(12, "published", 9.0),
        ],
    )
    assert problems_of(trace) == []
    events = trace["traceEvents"]
    names = {(e["name"], e["args"].get("name")) for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {
        *(("process_name", name) for name in ("driver", "actor_train", "actor_infer", "groups")),
        *(("thread_name", name) for name in ("steps", "rank 0", "rank 1")),
    }
    spans = {(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert spans == {("rollout", 0, 2e6), ("reward", 1e6, 5e5), ("train", 2e6, 1.5e6), ("train", 2e6, 1.25e6)}
    life = [(e["ph"], e["name"], e["ts"]) for e in events if e.get("id") == "12" and e["ph"] in "be"]
    assert life == [
        ("b", "group 12", 0),
        ("b", "waiting for an engine", 0),
        ("e", "waiting for an engine", 2.5e5),
        ("b", "sampling", 2.5e5),
        ("e", "sampling", 1e6),
        ("b", "scoring", 1e6),
        ("e", "scoring", 1.5e6),
        ("b", "waiting for its step", 1.5e6),
        ("e", "waiting for its step", 2e6),
        ("b", "training", 2e6),
        ("e", "training", 4e6),
        ("e", "group 12", 4e6),
    ]


def test_a_trace_of_nothing_is_a_trace(tmp_path: Path):
    assert problems_of(written(tmp_path / "trace.json", [])) == []


def test_stages_that_came_in_another_order_are_told_by_time(tmp_path: Path):
    trace = written(tmp_path / "trace.json", [Mark(0, "generated", 2.0), Mark(0, "admitted", 1.0)])
    assert problems_of(trace) == []
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "n"] == ["admitted", "generated"]


def test_the_checker_sees_intervals_that_cross_and_ends_without_a_beginning():
    crossing = [{"ph": "X", "pid": 1, "tid": 1, "name": n, "ts": t, "dur": 2.0} for n, t in (("a", 0.0), ("b", 1.0))]
    assert any("crosses" in problem for problem in problems_of({"traceEvents": crossing}))
    ended = [{"ph": "e", "pid": 1, "tid": 0, "name": "a", "ts": 0.0, "cat": "group", "id": "1"}]
    assert any("began" in problem for problem in problems_of({"traceEvents": ended}))
    assert any("ts" in problem for problem in problems_of({"traceEvents": [{"ph": "X", "pid": 1, "tid": 1}]}))
