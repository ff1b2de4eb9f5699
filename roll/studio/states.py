"""Whether a run goes on, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import psutil

from roll.run.records.run_record import RunStart

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
