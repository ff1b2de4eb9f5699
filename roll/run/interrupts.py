"""Ctrl-C, SIGTERM and SIGHUP: during set-up they end the run; during training the step is finished and saved."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from roll.errors import RollError

logger = logging.getLogger(__name__)

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP (its terminal was closed)"}
_LAST_RESORT_S = 60.0  # to end all processes, once the time is over
_WITHOUT_RAY_S = 15.0
_SAME_MOMENT_S = 0.5
_TO_SAVE_S = 5.0


class StepAbandoned(Exception):
    """A signal came while a step waited for another process: nothing of it was done."""


class Interrupts:
    """A context manager around a run. `requested` turns True with the first signal while `patient`; the second one, or
    the first while not patient, raises KeyboardInterrupt. `exit_code` is 128 + the signal's number, 0 without one.

    SIGTERM or SIGHUP that comes twice in the same moment is one: a scheduler sends it to every process of a job, and
    the supervisor hands it on. `limit_s` after it (0: never) it is as if a second one came. SIGHUP stays ignored under
    nohup."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s
        self.patient = False
        self.requested = False
        self.has_failed = False  # `fail` was called
        self.exit_code = 0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}
        self._timer: threading.Timer | None = None
        self._last = (0, 0.0)  # the newest SIGTERM or SIGHUP, and when it came
        self._is_stopping = False
        self._is_over = False
        self._failure: RollError | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            signals = [s for s in _NAMES if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
            self._previous = {s: signal.signal(s, self._handle) for s in signals}
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for signal_number, handler in self._previous.items():
            signal.signal(signal_number, handler)

    def fail(self, error: RollError) -> None:
        """Ends the run with this error, from any thread; after a signal the step has a moment to be saved first."""
        self.has_failed = True
        time.sleep(_SAME_MOMENT_S)
        if self.requested:
            time.sleep(_TO_SAVE_S)
        if self._is_over:
            return
        self._start_timer(_WITHOUT_RAY_S, os._exit, self.exit_code or 1)
        self._failure = error
        self._wake(signal.SIGTERM)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self._failure is not None:
            self._is_stopping, failure, self._failure = True, self._failure, None
            raise failure
        if signal_number != signal.SIGINT and self._is_echo(signal_number):
            return
        self.exit_code = self.exit_code or 128 + signal_number
        is_first, self.requested = not self.requested, True
        if not (self.patient and is_first):
            self._is_stopping = True
            raise KeyboardInterrupt
        self._announce(signal.Signals(signal_number))

    def _is_echo(self, signal_number: int) -> bool:
        last, self._last = self._last, (signal_number, time.monotonic())
        return last[0] == signal_number and self._last[1] - last[1] < _SAME_MOMENT_S

    def _announce(self, sent: signal.Signals) -> None:
        limit = ""
        if self.limit_s and sent != signal.SIGINT:
            self._start_timer(self.limit_s, self._out_of_time, sent)
            limit = f", if that takes no more than {self.limit_s:g} s (interrupt_timeout)"
        logger.warning(
            "%s: this step will be finished and saved%s, then the run ends. Press again to stop now.",
            _NAMES[sent],
            limit,
        )

    def _out_of_time(self, sent: int) -> None:
        """Ends the run at the time limit. Runs in the timer's thread; the signal handler runs in the main one."""
        if self._is_over:
            return
        self._start_timer(_LAST_RESORT_S, os._exit, self.exit_code)  # processes go with their driver, however it ends
        if not self._is_stopping:
            logger.warning(
                "interrupt_timeout of %g s is over: the run ends now, with the last saved state", self.limit_s
            )
            self._last = (0, 0.0)  # this one is no echo
            self._wake(sent)

    @staticmethod
    def _wake(signal_number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal_number)

    def _start_timer(self, seconds: float, then: Callable[[int], object], argument: int) -> None:
        self._timer = threading.Timer(seconds, then, (argument,))
        self._timer.daemon = True
        self._timer.start()
        if self._is_over:  # since its thread looked
            self._timer.cancel()
