"""Time limits within each other, in the main thread and in others."""

import signal
import threading
import time

import pytest

from roll.utils.timing import TimeLimitReached, call_within, computed_within

LONG_S = 20.0


def spin(seconds: float = LONG_S) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_an_inner_limit_ends_the_inner_call_and_the_outer_one_still_holds() -> None:
    ended: list[str] = []

    def work() -> None:
        with pytest.raises(TimeLimitReached):
            call_within(0.1, spin)
        ended.append("inner")
        spin()

    started = time.monotonic()
    with pytest.raises(TimeLimitReached):
        call_within(1.0, work)
    assert ended == ["inner"] and time.monotonic() - started < LONG_S / 2
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_inner_and_outer_limits_are_kept_apart() -> None:
    started = time.monotonic()
    with pytest.raises(TimeLimitReached):
        call_within(0.2, lambda: call_within(LONG_S, spin))
    assert time.monotonic() - started < LONG_S / 2
    assert call_within(5.0, lambda: call_within(3.0, lambda: 7)) == 7
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    # Else a comparison that the limit of the reward ends would be a wrong answer.
    with pytest.raises(TimeLimitReached):
        call_within(0.3, lambda: computed_within(LONG_S, lambda: time.sleep(LONG_S), None))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert computed_within(0.2, lambda: spin() or "done", "too slow") == "too slow"


def test_a_thread_is_no_longer_waited_for() -> None:
    found: list[str] = []

    def run() -> None:
        try:
            call_within(0.1, spin)
        except TimeLimitReached:
            found.append("stopped")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LONG_S / 2)
    assert found == ["stopped"]


def test_a_limit_of_cpu_time_does_not_count_waits() -> None:
    def wait() -> str:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            time.sleep(0.05)
        return "done"

    assert call_within(0.2, wait, of_cpu=True) == "done"
    started = time.thread_time()
    with pytest.raises(TimeLimitReached):
        call_within(0.2, spin, of_cpu=True)
    assert 0.2 <= time.thread_time() - started < LONG_S / 2


def test_limits_of_cpu_time_hold_within_each_other() -> None:
    ended: list[str] = []

    def work() -> None:
        with pytest.raises(TimeLimitReached):
            call_within(0.2, spin, of_cpu=True)
        ended.append("inner")
        spin()

    with pytest.raises(TimeLimitReached):
        call_within(0.6, work, of_cpu=True)
    assert ended == ["inner"]
