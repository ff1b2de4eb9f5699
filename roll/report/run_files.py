"""Files that a run left on disk, read for a report. Nothing of it is trusted: models and users wrote it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from roll.errors import ConfigError
from roll.run.display.view import Rows
from roll.run.records.run_record import RUN_FILE, RunStart, RunStory, read_story
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.utils.files import open_regular
from roll.utils.secrets import redact

# What the driver's log warns of, equal records once.

LOG_LINE = re.compile(r"^(\d\S+ \S+) ([A-Z]) \[[^\]]*\] (.*)$")
_MOST_CHARACTERS = 8_000  # of one record


@dataclass(frozen=True)
class LogLine:
    """A warning or an error. `count`: of equal ones, this being the last."""

    moment: str
    level: str
    text: str
    count: int


class WarningLines:
    """Warnings among the lines so far, each with the lines that continue it; those that differ in numbers alone are
    equal."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], LogLine] = {}
        self._current: tuple[str, str] | None = None  # the warning that the next line may continue

    def add(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if match := LOG_LINE.match(line):
                moment, level, text = match.groups()
                self._current = (level, re.sub(r"\d+", "0", text)) if level in "WEC" else None
                if self._current is not None:
                    before = self._lines.pop(self._current, None)
                    self._lines[self._current] = LogLine(moment, level, text, 1 + (before.count if before else 0))
            elif self._current is not None:
                last = self._lines[self._current]
                if len(last.text) < _MOST_CHARACTERS:
                    self._lines[self._current] = replace(last, text=f"{last.text}\n{line}")

    def lines(self) -> list[LogLine]:
        """The latest last."""
        return list(self._lines.values())


_RECORDS = re.compile(r"step_(\d+)(?:\.(val.*))?\.jsonl")
_SPREADS = "step_*.distributions.json"
_STAGE = re.compile(r"(\d+)-.+")
_Form = TypeVar("_Form", bound=BaseModel)
MOST_LOG_BYTES = 20_000_000  # of the end of a log


class Quantiles(BaseModel):
    model_config = ConfigDict(frozen=True)

    quantiles: tuple[float, float, float, float, float, float, float]
    edges: tuple[float, ...]
    counts: tuple[float, ...]


class Cause(BaseModel):
    model_config = ConfigDict(frozen=True)

    """A cause of failed attempts, and the task that failed for it first."""

    cause: str
    count: int
    first: str


class StepSpread(BaseModel):
    """Spread of rewards that `roll.rl.records.recorder` writes for a step, or for a validation."""

    model_config = ConfigDict(frozen=True)

    step: int
    kind: str
    num_attempts: int
    rewards: Quantiles | None
    response_lengths: Quantiles | None
    failures: tuple[Cause, ...]


@dataclass(frozen=True)
class RunFiles:
    """`name` is the run's, `directory` where it was found, `output` where it writes, `metrics` the file of `rows`;
    `story` is run.json, without it `config`, `starts` and `roll_version` are empty."""

    name: str
    directory: Path
    output: Path
    logs: Path
    rollouts: Path
    metrics: Path
    rows: Rows
    curves: tuple[str, str]
    config: Mapping[str, Any]
    starts: Sequence[RunStart]
    roll_version: str = ""
    story: RunStory | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The keys that the run was given; empty where nothing tells."""
        return self.story.settings if self.story is not None else {}

    @property
    def is_evaluation(self) -> bool:
        """Whether it measures a model and trains nothing, as `roll eval` does."""
        return self.config.get("mode") == "bench"

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(step for step, _ in self.rows)

    @property
    def log(self) -> Path:
        return self.logs / "driver.log"

    def files(self) -> list[Path]:
        """All that a report is made of; not each has to be there."""
        return [self.logs / RUN_FILE, self.metrics, self.log, *self.rollouts.glob("step_*")]

    def spread_files(self) -> list[Path]:
        return sorted(self.rollouts.glob(_SPREADS))

    def spreads(self) -> list[StepSpread]:
        """Spreads of the steps in the metrics. A restarted run may find files of later steps."""
        spreads = [spread for path in self.spread_files() if (spread := read_spread(path)) is not None]
        return [spread for spread in spreads if spread.step in self.steps]

    def records(self) -> list[tuple[str, int, Path]]:
        """Kind, step and file of sample rollouts: of the training ("train"), or of a validation ("val", "val.NAME")."""
        matches = ((path, _RECORDS.fullmatch(path.name)) for path in sorted(self.rollouts.glob("step_*.jsonl")))
        records = [(match[2] or "train", int(match[1]), path) for path, match in matches if match]
        return [record for record in records if record[1] in self.steps]

    def record_files(self, kind: str) -> dict[int, Path]:
        """Return the files of one kind, by step."""
        return {step: path for each, step, path in self.records() if each == kind}

    def warnings(self) -> list[LogLine]:
        """Return the warnings of the driver's log, the latest last."""
        lines = WarningLines()
        lines.add(_tail(self.log))
        return lines.lines()


def runs_at(directory: Path) -> list[Path]:
    """The directory; of stages those of the stages that have begun, in their order."""
    if any(map(is_logs, (directory / "logs", directory))) or not directory.is_dir():
        return [directory]
    numbered = [(int(match[1]), path) for path in directory.iterdir() if (match := _STAGE.fullmatch(path.name))]
    return [path for _, path in sorted(numbered) if any(map(is_logs, (path / "logs", path)))] or [directory]


def read_run(directory: Path) -> RunFiles:
    """Reads a run from its output_dir or its logging_dir. Raises ConfigError if there is none."""
    run = find_run(directory)
    try:
        rows = read_metrics(run.metrics)
    except OSError as error:
        raise ConfigError(f"{run.metrics} cannot be read: {error.strerror}") from error
    return replace(run, rows=[(step, finite(row)) for step, row in rows])


def find_run(directory: Path) -> RunFiles:
    """The same without its rows."""
    logs = next((place for place in (directory / "logs", directory) if is_logs(place)), None)
    if logs is None:
        runs = sorted(str(path.parent.parent) for path in directory.glob(f"*/logs/{RUN_FILE}"))
        if runs:
            raise ConfigError(f"{directory} holds runs. Name one of them: {', '.join(runs)}.")
        what = "has neither" if directory.is_dir() else "is no directory, so there is neither"
        raise ConfigError(
            f"{directory} {what} {RUN_FILE} nor {METRICS_FILE}, there or in logs: name the output_dir of a run (or its "
            "logging_dir, where that is elsewhere). Metrics are there if track_with has jsonl."
        )
    output = directory if logs != directory or logs.name != "logs" else directory.parent
    try:
        story = read_story(logs / RUN_FILE)
    except FileNotFoundError:
        story = RunStory(roll_version="", curves=("rollout/reward_mean", "val/reward_mean"), config={}, starts=())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{logs / RUN_FILE} cannot be read: {error}") from error
    return RunFiles(
        name=str(story.config.get("exp_name") or output.absolute().name),
        directory=directory,
        output=output,
        logs=logs,
        rollouts=_rollouts(output, story.config),
        metrics=_metrics(logs, story.config),
        rows=(),
        curves=story.curves,
        config=redact(story.config),
        starts=story.starts,
        roll_version=story.roll_version,
        story=story,
    )


def is_logs(place: Path) -> bool:
    """Whether a run writes its metrics there."""
    return (place / RUN_FILE).is_file() or (place / METRICS_FILE).is_file()


def _rollouts(output: Path, config: Mapping[str, Any]) -> Path:
    """Folder of the rollouts: below the output_dir (which may have been moved), unless the run had another one."""
    usual, dump_dir = output / "rollouts", config.get("rollout_dump_dir")
    if dump_dir is None:
        return usual
    place = Path(str(dump_dir))
    is_usual = place == Path(str(config.get("output_dir"))) / "rollouts"
    first, second = (usual, place) if is_usual else (place, usual)
    return first if os.path.isdir(first) else second  # False for a name that no file may have


def _metrics(logs: Path, config: Mapping[str, Any]) -> Path:
    kwargs = config.get("tracker_kwargs")
    jsonl = kwargs.get("jsonl") if isinstance(kwargs, Mapping) else None
    elsewhere = jsonl.get("log_dir") if isinstance(jsonl, Mapping) else None
    places = [logs, *([Path(str(elsewhere))] if elsewhere else [])]
    return next((place / METRICS_FILE for place in places if (place / METRICS_FILE).is_file()), logs / METRICS_FILE)


def finite(row: Mapping[str, Any]) -> dict[str, float]:
    """The row without NaN, infinities, and whole numbers that no float can hold."""
    return {name: value for name, value in row.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def read_spread(path: Path) -> StepSpread | None:
    """None for a file that a killed run left unfinished."""
    try:
        with open_regular(path) as file:
            return _read(StepSpread, file.read())
    except OSError:
        return None


def _read(form: type[_Form], text: bytes) -> _Form | None:
    """None for what is not whole."""
    try:
        return form.model_validate(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _tail(path: Path) -> Iterator[bytes]:
    """Lines of the end of a file, none where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_LOG_BYTES))
            yield from file
    except OSError:
        return
