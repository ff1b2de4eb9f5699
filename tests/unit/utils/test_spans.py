import threading

import pytest

from roll.utils.spans import ClockOffset, Interval, Level, Mark, Spans, shifted
from tests.helpers.clock import Clock


def test_a_span_is_recorded_with_its_times_also_when_it_raises():
    clock = Clock()
    spans = Spans(clock=clock)
    with pytest.raises(KeyError), spans.span("driver", "steps", "rollout", step=3):
        clock.now += 2
        raise KeyError
    assert spans.events() == [Interval("driver", "steps", "rollout", 100.0, 102.0, {"step": 3})]


def test_the_ring_keeps_the_newest_events_and_counts_the_others():
    spans = Spans(capacity=3, clock=Clock())
    for number in range(5):
        spans.mark(number, "admitted")
    assert [event.number for event in spans.events() if isinstance(event, Mark)] == [2, 3, 4]
    assert spans.num_lost == 2
    assert len(spans.take()) == 3
    assert spans.events() == []
    assert spans.num_lost == 0


def test_what_is_off_records_nothing():
    spans = Spans(capacity=0)
    with spans.span("driver", "steps", "rollout"):
        spans.mark(1, "admitted")
        spans.level("actor_infer", "running", 3)
    assert not spans.is_on
    assert spans.events() == []


def test_threads_lose_nothing_to_each_other():
    spans = Spans()

    def add(thread: int) -> None:
        for number in range(1000):
            spans.add(Level(f"process {thread}", "running", float(number), 1.0))

    threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(spans.events())) == 4000


def test_events_are_shifted_to_another_clock():
    assert shifted(Interval("a", "0", "train", 1.0, 2.0), 10.0) == Interval("a", "0", "train", 11.0, 12.0)
    assert shifted(Mark(3, "taken", 1.0), -1.0) == Mark(3, "taken", 0.0)
    assert shifted(Level("a", "running", 1.0, 5.0), 1.0) == Level("a", "running", 2.0, 5.0)


def test_the_shortest_round_trip_says_how_far_a_clock_is_away():
    offset = ClockOffset()
    offset.learn(asked_at=10.0, answered=10.2, shown=110.1)
    assert offset.seconds == pytest.approx(-100.0)
    offset.learn(asked_at=20.0, answered=21.0, shown=120.9)  # a long one says less
    assert offset.seconds == pytest.approx(-100.0)
    offset.learn(asked_at=30.0, answered=30.02, shown=130.015)
    assert offset.seconds == pytest.approx(-100.005)


def test_what_the_round_trip_explains_is_no_offset():
    offset = ClockOffset()
    offset.learn(asked_at=10.0, answered=10.2, shown=10.01)
    assert offset.seconds == 0.0
