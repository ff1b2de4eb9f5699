"""The cleaner of one run, seen from its driver: replaced when somebody kills it, and waited for at the end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
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
        self._told = b""  # to the cleaner, so far
        self._replacements_left = _MAX_REPLACEMENTS
        self._lock = threading.Lock()
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say_if_dead(self, texts: Mapping[int, str]) -> None:
        """The texts that it says of processes that die before the driver, unless `nothing_to_say` comes first."""
        self._tell("".join(f"{pid} {text}\n" for pid, text in texts.items()))

    def nothing_to_say(self) -> None:
        self._tell("\n")

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

    def _tell(self, lines: str) -> None:
        with self._lock:
            if self._is_ending:
                return
            self._told += lines.encode()
            self._write(self._process, lines.encode())

    def _write(self, process: subprocess.Popen[bytes], lines: bytes) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead; the one in its place is told all of it
            os.write(process.stdin.fileno(), lines)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-E", cleaner.__file__, *self._arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._write(process, self._told)
        when_gone(process.pid, self._replace)
        return process

    def _replace(self) -> None:
        with self._lock:
            if self._is_ending:
                return
            status = self._process.wait()
            if not self._replacements_left:
                logger.warning(
                    "no process would clean up if the driver were killed: each cleaner ended (status %d)", status
                )
                return
            self._replacements_left -= 1
            logger.warning("the process that cleans up after this run ended (status %d): it is replaced", status)
            self._process = self._start()
