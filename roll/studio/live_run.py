"""A run as its files say it is by now; only what they have got since is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from roll.report.run_files import (
    MOST_LOG_BYTES,
    LogLine,
    RunFiles,
    StepSpread,
    WarningLines,
    find_run,
    finite,
    read_spread,
)
from roll.run.records.run_record import RUN_FILE, RunStart
from roll.run.tracking.local import NO_METRICS, read_line
from roll.utils.files import open_regular

# Files that a running program writes at their end, read as they grow.


class AppendedLines:
    """Whole lines of a file, each once. A file that was replaced or cut, as a resumed run does, is read anew."""

    def __init__(self, path: Path, most_bytes: int | None = None):
        """`most_bytes`: of the end of what is there at first; None: all of it."""
        self.path = path
        self._most_bytes = most_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether the lines of before no longer count, and the new ones."""
        try:
            with open_regular(self.path) as file:
                return self._new_lines(file)
        except OSError:  # not there yet, or no more, or no file of lines
            is_anew = self._file is not None
            self._file = None
            return is_anew, []

    def _new_lines(self, file: BinaryIO) -> tuple[bool, list[bytes]]:
        status = os.fstat(file.fileno())
        is_anew = self._file != (status.st_dev, status.st_ino) or status.st_size < self._offset
        if is_anew:
            start = 0 if self._most_bytes is None else max(0, status.st_size - self._most_bytes)
            self._file, self._offset, self._rest = (status.st_dev, status.st_ino), start, b""
            if start:
                file.seek(start - 1)
                self._offset = start - 1 + len(file.readline())  # the line that is cut
        file.seek(self._offset)
        data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return is_anew, lines


Mark = tuple[int, ...]
"""Mark of a file: which file it is, its size, when it was written and changed; another mark is another text."""


class LiveRun:
    """`update` looks at the disk; everything else answers from memory. Raises ConfigError where there is no run."""

    def __init__(self, directory: Path, most_bytes: int | None = None):
        """`most_bytes`: of the metrics that are there at first, the last ones; None: all of them."""
        self._directory = directory
        self._most_bytes = most_bytes
        self._story: Mark | None = None
        self._rows: dict[int, dict[str, float]] = {}
        self._spreads: dict[Path, tuple[Mark, StepSpread | None]] = {}
        self.files = find_run(directory)
        self._metrics = AppendedLines(self.files.metrics, most_bytes)
        self._log = AppendedLines(self.files.log, MOST_LOG_BYTES)
        self._warnings = WarningLines()

    def update(self) -> bool:
        """Reads what is new of configuration, starts and metrics. False where nothing is."""
        is_new = self._read_story()
        is_anew, lines = self._metrics.read()
        if is_anew:
            self._rows.clear()
        for line in lines:
            try:
                step, row = read_line(line.decode("utf-8", "replace"))
            except NO_METRICS:
                continue
            self._rows.setdefault(step, {}).update(finite(row))
        if is_new or is_anew or lines:
            self.files = replace(self.files, rows=sorted(self._rows.items()))
            return True
        return False

    def warnings(self) -> Sequence[LogLine]:
        """Return the warnings of the driver's log so far."""
        is_anew, lines = self._log.read()
        if is_anew:
            self._warnings = WarningLines()
        self._warnings.add(lines)
        return self._warnings.lines()

    def spreads(self) -> list[StepSpread]:
        """The same as `RunFiles.spreads`, but each file is read once."""
        known = self._spreads
        marks = {path: mark for path in self.files.spread_files() if (mark := mark_of(path)) is not None}
        self._spreads = {
            path: known[path] if path in known and known[path][0] == mark else (mark, read_spread(path))
            for path, mark in marks.items()
        }
        steps = self.files.steps
        return [spread for _, spread in self._spreads.values() if spread is not None and spread.step in steps]

    def _read_story(self) -> bool:
        mark = mark_of(self.files.logs / RUN_FILE)
        if mark == self._story:
            return False
        self.files = replace(find_run(self._directory), rows=self.files.rows)
        self._story = mark
        if self.files.metrics != self._metrics.path:
            self._metrics = AppendedLines(self.files.metrics, self._most_bytes)
        return True


def mark_of(path: Path) -> Mark | None:
    """None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def marks_of(run: RunFiles) -> dict[Path, Mark]:
    """Return the marks of all files that a report of the run is made of."""
    return {path: mark for path in run.files() if (mark := mark_of(path)) is not None}


def newest(run: RunFiles) -> float:
    """Time at which the run last wrote, in seconds since 1970; 0 if no file is left."""
    return max(map(_written, (run.metrics, run.log, run.logs / RUN_FILE)))


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# Whether a run goes on, and how it ended.

State = Literal["running", "finished", "stopped", "failed", "killed", "unknown", "broken"]
SILENT_S = 300.0
"""A run of another machine that has written nothing for so long counts as killed."""
_STOPPED = frozenset({129, 130, 143})
_CLOCK_S = 2.0  # between the second that a start is written with and the process's own


def state_of(starts: Sequence[RunStart], silent_s: float) -> State:
    """`silent_s`: since the run last wrote. A process of this machine that is there says more than that."""
    if not starts:
        return "unknown"
    last = starts[-1]
    if last.exit_code is None:
        return "running" if process_of(last) is not None or silent_s < SILENT_S else "killed"
    return "finished" if last.exit_code == 0 else "stopped" if last.exit_code in _STOPPED else "failed"


def process_of(start: RunStart) -> psutil.Process | None:
    """The process of a start that goes on, if it is of this machine: one with its number that is not younger than it
    says."""
    if start.exit_code is not None:
        return None
    try:
        process = psutil.Process(start.pid)
        began = datetime.fromisoformat(start.started).timestamp()
        is_it = process.create_time() <= began + _CLOCK_S and process.status() != psutil.STATUS_ZOMBIE
        return process if is_it and process.username() == psutil.Process().username() else None
    except (psutil.Error, ValueError):
        return None
