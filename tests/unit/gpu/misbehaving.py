"""Checks that do what they should not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.gpu.check import Figures
from tests.gpu.place import CannotRun, Place


def tells(place: Place, **figures: float) -> Figures:
    return figures | {"devices": len(place.devices)}


def waits_for_another(place: Place, mine: str, other: str) -> Figures:
    """Until both run."""
    Path(mine).touch()
    while not Path(other).exists():
        time.sleep(0.01)
    return {}


def fails(place: Place) -> Figures:
    raise ValueError("several lines,\nof which the last is the cause")


def hangs(place: Place, started: str) -> Figures:
    """With a process of its own in another session, which hangs, too."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(started).write_text(str(process.pid))
    time.sleep(1000)
    return {}


def dies(place: Place) -> Figures:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def leaves(place: Place) -> Figures:
    os._exit(3)


def cannot(place: Place) -> Figures:
    raise CannotRun("the driver is too old")
