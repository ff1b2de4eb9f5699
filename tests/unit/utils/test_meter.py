import pytest

from roll.utils.spans import Interval, Level
from roll.utils.worker_usage import IDLE, Meter
from tests.helpers.clock import Clock


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


def test_counts_begin_anew_in_every_window():
    meter = Meter("actor_infer", "rank 0", Clock())
    meter.count("sampled_tokens", 3)
    meter.count("sampled_tokens", 4)
    assert meter.take().counts == {"sampled_tokens": 7.0}
    assert meter.take().counts == {}


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


def test_a_fraction_is_never_beyond_one():
    clock = Clock()
    meter = Meter("rewards.math", "rank 0", clock)
    meter.go("score")
    clock.now += 0.1 + 0.2
    meter.go("batch")
    clock.now += 0.3
    assert meter.take().fraction("score", "batch") == pytest.approx(1.0)
