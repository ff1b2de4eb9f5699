"""The cleaner of one run, seen from its driver: replaced when somebody kills it, and waited for at the end."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

from roll.distributed.executor.processes import cleaner
from roll.utils.owner_watch import when_gone

logger = logging.getLogger(__name__)

_MAX_REPLACEMENTS = 10  # one that cannot start at all must not be tried for ever
_END_LIMIT_S = 30.0


class CleanerProcess:
    """Ends what belongs to the run with this directory when the driver does, however the driver ends. What the workers
    printed goes to the directory `logs`."""

    def __init__(self, directory: str, logs: Path | None = None):
        self._arguments = (directory, *([] if logs is None else [str(logs.absolute())]))
        self._is_ending = False
        self._replacements_left = _MAX_REPLACEMENTS
        self._lock = threading.Lock()
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Returns when everything of the run is gone."""
        with self._lock:
            self._is_ending = True
        self._process.send_signal(signal.SIGCONT)  # one that was suspended would hold up the end
        try:
            self._process.communicate(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait() != 0:
            cleaner.clean(*self._arguments)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-E", cleaner.__file__, *self._arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        when_gone(process.pid, self._replace)
        return process

    def _replace(self) -> None:
        with self._lock:
            if self._is_ending:
                return
            status = self._process.wait()
            if not self._replacements_left:
                logger.warning("no process cleans up should the driver be killed: each one ended (status %d)", status)
                return
            self._replacements_left -= 1
            logger.warning("the process that cleans up after this run ended (status %d): it is replaced", status)
            self._process = self._start()
