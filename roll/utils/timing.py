"""Wall seconds per phase of a step."""

import _signal  # pyright: ignore[reportMissingImports] - `signal.signal` looks handlers up among enums: too slow here
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar


class Timer:
    """Collects wall seconds by phase between two resets, in one thread. A phase inside a phase is reported below its
    parent and is part of its time. A phase entered several times adds up, also when it raises.

    Example: a step of 10 s with `rollout` 6 s, of it `reward` 2 s:
      {"time/rollout_s": 6.0, "time/rollout/reward_s": 2.0, "time/other_s": 4.0, "time/step_s": 10.0}"""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        on_enter: Callable[[str], None] | None = None,
        on_leave: Callable[[str, float, float], None] | None = None,
    ):
        """on_enter is told the path of every phase ("rollout/reward"); on_leave also when it began and ended."""
        self._clock = clock
        self._on_enter, self._on_leave = on_enter, on_leave
        self._open: list[str] = []
        self._seconds: dict[str, float] = {}
        self._started = clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if "/" in phase:
            raise ValueError(f"a phase name holds no '/' (nesting makes it): {phase!r}")
        self._open.append(phase)
        path = "/".join(self._open)
        self._seconds.setdefault(path, 0.0)  # parents before children, in the order of entry
        if self._on_enter:
            self._on_enter(path)
        entered = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._seconds[path] += ended - entered
            self._open.pop()
            if self._on_leave:
                self._on_leave(path, entered, ended)

    def metrics(self) -> dict[str, float]:
        """Seconds of every phase since the last reset, of what no phase covers, and of the whole step."""
        step = self._clock() - self._started
        covered = sum(seconds for path, seconds in self._seconds.items() if "/" not in path)
        named = {f"time/{path}_s": seconds for path, seconds in self._seconds.items()}
        return {**named, "time/other_s": max(step - covered, 0.0), "time/step_s": step}

    def reset(self) -> None:
        """Starts a new step. Not inside a phase."""
        if self._open:
            raise RuntimeError(f"reset inside the phase {'/'.join(self._open)}")
        self._seconds = {}
        self._started = self._clock()


def phase_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """The top-level phases in a step's metrics, by name, without the total. They sum to `time/step_s`."""
    phases = {}
    for key, value in metrics.items():
        owner, _, name = key.partition("/")
        if owner == "time" and name.endswith("_s") and "/" not in name and name != "step_s":
            phases[name.removesuffix("_s")] = value
    return phases


# Stopping a call that takes too long, inside the process that makes it.

T = TypeVar("T")
REPEAT_S = 0.25  # a first alarm may end in an `except:` of the code it is to stop


class TimeLimitReached(BaseException):
    """Raised at the time limit; no Exception, so that `except Exception` in the stopped code does not swallow it.
    `limit`: which one is over, on the way to the call that set it; None behind that."""

    def __init__(self, limit: object = None) -> None:
        super().__init__()
        self.limit = limit


def call_within(seconds: float, call: Callable[[], T], of_cpu: bool = False) -> T:
    """The result of `call()`. Raises TimeLimitReached when it takes longer.

    `of_cpu` counts the seconds that the call computes. In the main thread an alarm interrupts Python code, waits and
    regular expressions; limits may stand within each other. In another thread the call gets a thread of its own, which
    is told to stop at its next Python instruction and no longer waited for; all threads of the process count for
    `of_cpu` there. Neither stops a long operation inside a C extension: only killing the process does."""
    if threading.current_thread() is threading.main_thread():
        return _call_with_alarm(seconds, call, time.thread_time if of_cpu else time.monotonic)
    return _call_in_thread(seconds, call, time.process_time if of_cpu else time.monotonic)


def computed_within(seconds: float, call: Callable[[], T], otherwise: T) -> T:
    """The result of `call()`, or `otherwise` when it computes for longer. A limit around this one goes on."""
    try:
        return call_within(seconds, call, of_cpu=True)
    except TimeLimitReached as reached:
        if reached.limit is not None:
            raise
        return otherwise


def _call_with_alarm(seconds: float, call: Callable[[], T], clock: Callable[[], float]) -> T:
    limit = object()
    left_s, repeat_s = signal.getitimer(signal.ITIMER_REAL)  # of a limit around this one
    started, ends = time.monotonic(), clock() + seconds

    def stop(signum: int, frame: FrameType | None) -> None:
        if clock() >= ends:
            raise TimeLimitReached(limit)
        if left_s and callable(previous):
            previous(signum, frame)

    previous = _signal.signal(signal.SIGALRM, stop)

    def disarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _signal.signal(signal.SIGALRM, previous)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(started + left_s - time.monotonic(), 1e-3), repeat_s)

    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, min(seconds, left_s or seconds), REPEAT_S)
            return call()
        finally:
            disarm()
    except TimeLimitReached as reached:
        disarm()  # the alarm may have come between the call and the line that switches it off
        if reached.limit is limit:
            raise TimeLimitReached from None
        raise


def _call_in_thread(seconds: float, call: Callable[[], T], clock: Callable[[], float]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    ends = clock() + seconds
    thread.start()
    while thread.is_alive() and (left_s := ends - clock()) > 0:
        thread.join(max(left_s, 1e-3))
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimitReached))
        raise TimeLimitReached
    if errors:
        raise errors[0]
    return results[0]
