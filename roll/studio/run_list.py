"""The runs below some folders, finished and running."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.errors import ConfigError
from roll.pipeline.display.summary import series
from roll.report.run_files import RunFiles, is_logs
from roll.studio.live_run import LiveRun, newest
from roll.studio.states import State, state_of

_DEPTH = 8
_INNER = frozenset({"logs", "checkpoints", "rollouts", "tensorboard", "workers", "model", "__pycache__"})
_TAIL_BYTES = 200_000  # of the metrics of a run, for the list


@dataclass(frozen=True)
class Glance:
    """A line of the list. `key` stands for the directory in addresses; `reward`: the last value of the first curve,
    named by `curve`; `written`: when it last wrote, in seconds since 1970."""

    key: str
    name: str
    directory: Path
    state: State
    step: int
    max_steps: int | None
    curve: str
    reward: float | None
    validation: float | None
    written: float


class RunList:
    """Threads may ask at once; the folders are walked at most once in `every_s`."""

    def __init__(self, folders: Sequence[Path], every_s: float = 2.0):
        self.folders = tuple(folders)
        self._every_s = every_s
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}
        self._glances: list[Glance] = []
        self._walked: float | None = None

    def glances(self) -> list[Glance]:
        """Running ones first, then what was written last."""
        with self._lock:
            if self._walked is None or time.monotonic() - self._walked >= self._every_s:
                self._walk()
                self._walked = time.monotonic()
            return self._glances

    def directory(self, key: str) -> Path | None:
        """Of a run that was found; None for any other text."""
        found = {glance.key: glance.directory for glance in self.glances()}
        return found.get(key)

    def _walk(self) -> None:
        runs: dict[str, LiveRun] = {}
        glances = []
        for directory in dict.fromkeys(path for folder in self.folders for path in run_directories(folder)):
            key = key_of(directory)
            try:
                runs[key] = self._runs.get(key) or LiveRun(directory, _TAIL_BYTES)
                runs[key].update()
            except ConfigError:  # a run.json that cannot be read, or a run that was removed meanwhile
                runs.pop(key, None)
                continue
            glances.append(_glance(key, runs[key].files))
        self._runs = runs
        self._glances = sorted(glances, key=lambda glance: (glance.state != "running", -glance.written))


def key_of(directory: Path) -> str:
    return hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:16]


def run_directories(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Directories of runs in a folder, itself included; links are not followed."""
    if is_logs(folder / "logs") or is_logs(folder):
        yield folder
    try:
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in inner:
        if depth and name not in _INNER and not name.startswith("."):
            yield from run_directories(folder / name, depth - 1)


def _glance(key: str, run: RunFiles) -> Glance:
    written = newest(run)
    reward, validation = (series(run.rows, name) for name in run.curves)
    max_steps = run.config.get("max_steps")
    return Glance(
        key=key,
        name=run.name,
        directory=run.directory,
        state=state_of(run.starts, time.time() - written),
        step=max(run.steps, default=0),
        max_steps=max_steps if isinstance(max_steps, int) else None,
        curve=run.curves[0],
        reward=reward[-1][1] if reward else None,
        validation=validation[-1][1] if validation else None,
        written=written,
    )
