"""The runs below some folders, finished and running."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from roll.errors import ConfigError
from roll.report.about import About, about
from roll.report.figures import health
from roll.report.run_files import RunFiles, is_logs
from roll.run.display.view import series
from roll.run.records.run_record import RunStart
from roll.studio.live_run import LiveRun, State, newest, state_of
from roll.studio.notes import Notes

_DEPTH = 8
_INNER = frozenset({"logs", "checkpoints", "rollouts", "tensorboard", "workers", "model", "__pycache__"})
_TAIL_BYTES = 200_000  # of the metrics of a run, for the list
_COURSE_POINTS = 40


@dataclass(frozen=True)
class Glance:
    """A line of the list. `key` stands for the directory in addresses; `reward`: the last value of the first curve,
    whose values so far are `course`; `health`: whether it learns; `written`: when it last wrote, in seconds since 1970;
    `ran_s`: how long its starts ran, in seconds."""

    key: str
    name: str
    directory: Path
    state: State
    step: int
    max_steps: int | None
    reward: float | None
    validation: float | None
    written: float
    health: str = ""
    about: About = field(default_factory=About)
    ran_s: float = 0.0
    course: tuple[float, ...] = ()


class RunList:
    """Threads may ask at once; the folders are walked at most once in `every_s`."""

    def __init__(self, folders: Sequence[Path], every_s: float = 2.0):
        self.folders = tuple(folders)
        self.notes = Notes(folders[0])
        self._every_s = every_s
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}
        self._known: dict[str, tuple[RunFiles, Glance]] = {}
        self._glances: list[Glance] = []
        self._last_walk: float | None = None

    def glances(self) -> list[Glance]:
        """Running ones first, then what was written last; under the names that people gave them."""
        names = self.notes.noted.names
        with self._lock:
            if self._last_walk is None or time.monotonic() - self._last_walk >= self._every_s:
                self._walk()
                self._last_walk = time.monotonic()
            return [replace(each, name=names.get(each.key, each.name)) for each in self._glances]

    def files(self) -> list[tuple[str, RunFiles]]:
        """Keys and files of the runs that can be read, in the order of `glances`."""
        return [(g.key, self._runs[g.key].files) for g in self.glances() if g.key in self._runs]

    def directory(self, key: str) -> Path | None:
        """Directory of a run in the list; None for any other text."""
        return self.directories([key]).get(key)

    def directories(self, keys: Collection[str]) -> dict[str, Path]:
        """Directories of those that are keys of runs in the list."""
        return {glance.key: glance.directory for glance in self.glances() if glance.key in keys}

    def _walk(self) -> None:
        directories = dict.fromkeys(path for folder in self.folders for path in run_directories(folder))
        glances = [glance for directory in directories if (glance := self._glance(directory)) is not None]
        keys = {glance.key for glance in glances}
        self._runs = {key: run for key, run in self._runs.items() if key in keys}
        self._known = {key: known for key, known in self._known.items() if key in keys}
        self._glances = sorted(glances, key=lambda glance: (glance.state != "running", -glance.written))

    def _glance(self, directory: Path) -> Glance | None:
        """None for a run that was removed meanwhile. One whose run.json cannot be read is listed as broken."""
        key = key_of(directory)
        try:
            run = self._runs.get(key) or LiveRun(directory, _TAIL_BYTES)
            run.update()
        except ConfigError:
            self._runs.pop(key, None)
            if not (is_logs(directory / "logs") or is_logs(directory)):
                return None
            return Glance(key, directory.name, directory, "broken", 0, None, None, None, 0.0)
        self._runs[key] = run
        files, glance = self._known.get(key, (None, None))
        if glance is None or files is not run.files:  # else its state and its times alone may differ
            glance = _glance(key, run.files)
        self._known[key] = run.files, glance
        return _as_of_now(glance, run.files)


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


def ran_s(starts: Sequence[RunStart], written: float) -> float:
    """Seconds that the starts of a run took; one without an end lasted until the run last wrote."""
    total = 0.0
    for start in starts:
        try:
            began = datetime.fromisoformat(start.started).timestamp()
            ended = datetime.fromisoformat(start.ended).timestamp() if start.ended else written
        except ValueError:
            continue
        total += max(0.0, ended - began)
    return total


def _course(values: Sequence[float]) -> tuple[float, ...]:
    """Means of neighbouring values, up to _COURSE_POINTS of them."""
    size = math.ceil(len(values) / _COURSE_POINTS)
    parts = [values[start : start + size] for start in range(0, len(values), size)] if size else []
    return tuple(sum(part) / len(part) for part in parts)


def _glance(key: str, run: RunFiles) -> Glance:
    reward, validation = (series(run.rows, name) for name in run.curves)
    max_steps = run.config.get("max_steps")
    return Glance(
        key=key,
        name=run.name,
        directory=run.directory,
        state="unknown",
        step=max(run.steps, default=0),
        max_steps=max_steps if isinstance(max_steps, int) else None,
        reward=reward[-1][1] if reward else None,
        validation=validation[-1][1] if validation else None,
        written=0.0,
        health="" if run.is_evaluation else health(run).label,
        about=about(run),
        course=_course([value for _, value in reward or validation]),
    )


def _as_of_now(glance: Glance, run: RunFiles) -> Glance:
    written = newest(run)
    state = state_of(run.starts, time.time() - written)
    return replace(glance, state=state, written=written, ran_s=ran_s(run.starts, written))
