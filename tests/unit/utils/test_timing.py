"""Times of phases, spans on the clocks of several processes, meters, and the trace that shows them."""

import json
from pathlib import Path

import pytest

from roll.utils.spans import Interval, Spans, write_chrome_trace
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


def test_the_ring_keeps_the_newest_intervals_until_they_are_taken():
    spans = Spans(capacity=3)
    spans.add(*(Interval("driver", "steps", "rollout", float(n), n + 1.0) for n in range(5)))
    assert [interval.started for interval in spans.take()] == [2.0, 3.0, 4.0]
    assert spans.take() == [] and not Spans(0).is_on


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
    assert usage.wall_s == 6.0
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
    assert meter.take(trace=True).events == (Interval("actor_train", "rank 1", "train", 105.0, 107.0),)


def test_a_trace_keeps_to_the_format_and_has_a_process_per_role_and_a_thread_per_rank(tmp_path: Path):
    path = tmp_path / "sub" / "trace.json"
    intervals = [
        Interval("driver", "steps", "rollout", 5.0, 7.0),
        Interval("driver", "steps", "reward", 6.0, 6.5),
        Interval("actor_train", "rank 0", "train", 7.0, 8.5),
        Interval("actor_train", "rank 1", "train", 7.0, 8.25),
    ]
    write_chrome_trace(path, intervals)
    trace = json.loads(path.read_text())
    assert problems_of(trace) == []
    events = trace["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {
        *(("process_name", name) for name in ("driver", "actor_train")),
        *(("thread_name", name) for name in ("steps", "rank 0", "rank 1")),
    }
    spans = {(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert spans == {("rollout", 0, 2e6), ("reward", 1e6, 5e5), ("train", 2e6, 1.5e6), ("train", 2e6, 1.25e6)}
