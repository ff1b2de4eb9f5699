"""Ctrl-C and SIGTERM: during set-up they end the run at once; during training the first one lets the step finish and be
saved."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Self

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context manager around a run. `requested` turns True with the first signal while `patient`; the second one, or
    the first while not patient, raises KeyboardInterrupt. `exit_code` is 128 + the signal's number (130 for Ctrl-C), 0
    without a signal."""

    def __init__(self) -> None:
        self.patient = False
        self.requested = False
        self.exit_code = 0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._handle) for s in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._previous.items():
            signal.signal(signal_number, handler)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + signal_number
        name = "Ctrl-C" if signal_number == signal.SIGINT else "SIGTERM"
        if self.patient and not self.requested:
            self.requested = True
            logger.warning("%s: this step will be finished and saved, then the run ends. Once more to stop now.", name)
            return
        raise KeyboardInterrupt
