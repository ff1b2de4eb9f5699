"""Stopping a call that takes too long, inside the process that makes it."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal.signal` looks handlers up among enums: too slow here
import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
REPEAT_S = 0.25  # a first alarm may end in an `except:` of the code it is to stop


class TimeLimitReached(BaseException):
    """Raised at the time limit. It is no Exception, so that `except Exception` in the stopped code does not swallow
    it."""


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """The result of `call()`. Raises TimeLimitReached when it takes longer.

    In the main thread an alarm interrupts Python code, waits and regular expressions. In another thread the call gets a
    thread of its own, which is told to stop at its next Python instruction and no longer waited for. Neither stops a
    long operation inside a C extension: only killing the process does. Limits in the main thread may stand within each
    other: the one that is over first is told.
    """
    if threading.current_thread() is threading.main_thread():
        return _call_with_alarm(seconds, call)
    return _call_in_thread(seconds, call)


def _call_with_alarm(seconds: float, call: Callable[[], T]) -> T:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeLimitReached

    left_s, repeat_s = signal.getitimer(signal.ITIMER_REAL)  # of a limit around this one
    if 0 < left_s <= seconds:
        return call()  # that one comes first
    started = time.monotonic()
    previous = _signal.signal(signal.SIGALRM, stop)

    def disarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _signal.signal(signal.SIGALRM, previous)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(started + left_s - time.monotonic(), 1e-3), repeat_s)

    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
            return call()
        finally:
            disarm()
    except TimeLimitReached:
        disarm()  # the alarm may have come between the call and the line that switches it off
        raise


def _call_in_thread(seconds: float, call: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimitReached))
        raise TimeLimitReached
    if errors:
        raise errors[0]
    return results[0]
