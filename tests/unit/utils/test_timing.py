"""Times of phases, spans on the clocks of several processes, meters, and the trace that shows them."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.utils.spans import ClockOffset, Event, Interval, Level, Mark, Spans, shifted, write_chrome_trace
from roll.utils.timing import Timer, phase_seconds
from roll.utils.worker_usage import IDLE, Meter
from tests.helpers.clock import Clock
from tests.helpers.trace_format import problems_of


def test_nested_phases_count_within_their_parent_and_the_rest_is_other():
    clock = Clock()
    timer = Timer(clock)
    with timer("rollout"):
        clock.now += 4
        with timer("reward"):
            clock.now += 2
    clock.now += 1
    with timer("train_actor"):
        clock.now += 3
    assert timer.metrics() == {
        "time/rollout_s": 6.0,
        "time/rollout/reward_s": 2.0,
        "time/train_actor_s": 3.0,
        "time/other_s": 1.0,
        "time/step_s": 10.0,
    }
    assert phase_seconds(timer.metrics()) == {"rollout": 6.0, "train_actor": 3.0, "other": 1.0}


def test_a_phase_entered_twice_adds_up_also_when_it_raises():
    clock = Clock()
    timer = Timer(clock)
    with timer("sync"):
        clock.now += 1
    with pytest.raises(KeyError), timer("sync"):
        clock.now += 2
        raise KeyError
    assert timer.metrics()["time/sync_s"] == 3.0
    with timer("next"):
        pass
    assert "time/next_s" in timer.metrics(), "the phase that raised was left"


def test_reset_begins_a_step_and_not_inside_a_phase():
    clock = Clock()
    timer = Timer(clock)
    with timer("rollout"):
        clock.now += 5
    timer.reset()
    clock.now += 2
    assert timer.metrics() == {"time/other_s": 2.0, "time/step_s": 2.0}
    timer = Timer()
    with timer("rollout"), pytest.raises(RuntimeError, match="rollout"):
        timer.reset()
    heard: list[str] = []
    timer = Timer(on_enter=heard.append)
    with timer("rollout"), timer("reward"):
        pass
    assert heard == ["rollout", "rollout/reward"]


def test_spans_have_times_and_record_nothing_when_off():
    clock = Clock()
    spans = Spans(clock=clock)
    with pytest.raises(KeyError), spans.span("driver", "steps", "rollout", step=3):
        clock.now += 2
        raise KeyError
    assert spans.events() == [Interval("driver", "steps", "rollout", 100.0, 102.0, {"step": 3})]
    spans = Spans(capacity=0)
    with spans.span("driver", "steps", "rollout"):
        spans.mark(1, "admitted")
        spans.level("actor_infer", "running", 3)
    assert not spans.is_on
    assert spans.events() == []


def test_the_ring_keeps_the_newest_events_and_counts_the_others():
    spans = Spans(capacity=3, clock=Clock())
    for number in range(5):
        spans.mark(number, "admitted")
    assert [event.number for event in spans.events() if isinstance(event, Mark)] == [2, 3, 4]
    assert spans.num_lost == 2
    assert len(spans.take()) == 3
    assert spans.events() == []
    assert spans.num_lost == 0


def test_clocks_are_aligned_by_the_shortest_round_trip():
    assert shifted(Interval("a", "0", "train", 1.0, 2.0), 10.0) == Interval("a", "0", "train", 11.0, 12.0)
    assert shifted(Mark(3, "taken", 1.0), -1.0) == Mark(3, "taken", 0.0)
    assert shifted(Level("a", "running", 1.0, 5.0), 1.0) == Level("a", "running", 2.0, 5.0)
    offset = ClockOffset()
    offset.learn(asked_at=10.0, answered=10.2, shown=110.1)
    assert offset.seconds == pytest.approx(-100.0)
    offset.learn(asked_at=20.0, answered=21.0, shown=120.9)  # a long one says less
    assert offset.seconds == pytest.approx(-100.0)
    offset.learn(asked_at=30.0, answered=30.02, shown=130.015)
    assert offset.seconds == pytest.approx(-100.005)
    offset = ClockOffset()
    offset.learn(asked_at=10.0, answered=10.2, shown=10.01)
    assert offset.seconds == 0.0


def test_seconds_by_state_add_up_to_the_time_that_passed():
    clock = Clock()
    meter = Meter("actor_train", "rank 0", clock)
    clock.now += 2
    meter.go("train")
    clock.now += 3
    meter.go(IDLE)
    clock.now += 1
    usage = meter.take()
    assert usage.seconds == {IDLE: 3.0, "train": 3.0}
    assert (usage.wall_s, usage.shown) == (6.0, 106.0)
    assert usage.fraction("train", "score") == 0.5
    assert meter.take().fraction("train") == 0.0, "nothing has passed since"


def test_a_state_that_goes_on_is_shared_out_between_two_windows():
    clock = Clock()
    meter = Meter("actor_infer", "rank 0", clock)
    meter.go("sampling")
    clock.now += 4
    assert meter.take().seconds == {IDLE: 0.0, "sampling": 4.0}
    clock.now += 1
    meter.go("sampling")  # no change
    clock.now += 1
    meter.go(IDLE)
    clock.now += 6
    assert meter.take().seconds == {"sampling": 2.0, IDLE: 6.0}


def test_counts_begin_anew_and_fractions_stay_below_one():
    meter = Meter("actor_infer", "rank 0", Clock())
    meter.count("sampled_tokens", 3)
    meter.count("sampled_tokens", 4)
    assert meter.take().counts == {"sampled_tokens": 7.0}
    assert meter.take().counts == {}
    clock = Clock()
    meter = Meter("rewards.math", "rank 0", clock)
    meter.go("score")
    clock.now += 0.1 + 0.2
    meter.go("batch")
    clock.now += 0.3
    assert meter.take().fraction("score", "batch") == pytest.approx(1.0)


def test_events_are_recorded_from_the_first_question_for_them_and_intervals_stay_whole():
    clock = Clock()
    meter = Meter("actor_train", "rank 1", clock)
    meter.go("setup")
    assert meter.take(trace=True).events == ()
    clock.now += 5
    meter.go("train")
    clock.now += 1
    assert meter.take(trace=True).events == (Interval("actor_train", "rank 1", "setup", 100.0, 105.0),)
    clock.now += 1
    meter.go(IDLE)
    meter.spans.level("actor_train", "open", 3)
    assert meter.take(trace=True).events == (
        Interval("actor_train", "rank 1", "train", 105.0, 107.0),
        Level("actor_train", "open", 107.0, 3),
    )


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
