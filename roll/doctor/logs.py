"""Findings about a run from its files: whether it learns, and the errors of known_errors.yaml in its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path

import yaml

from roll.doctor.machine import Finding
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, read_run
from roll.run.health.history import History
from roll.run.health.verdict import PAGE, verdict
from roll.run.records.replay import read
from roll.run.records.scorecard import comparison
from roll.run.tracking.local import read_metrics
from roll.utils.files import path_info
from roll.utils.secrets import mask
from roll.utils.text import show


@dataclass(frozen=True)
class KnownError:
    """A row of known_errors.yaml, which says what the fields mean."""

    name: str
    pattern: str
    cause: str
    where: str
    fix: str
    context: str = ""
    follows: bool = False


_FILE = files("roll.doctor") / "known_errors.yaml"
KNOWN_ERRORS = tuple(KnownError(**row) for row in yaml.safe_load(_FILE.read_text(encoding="utf-8")))
_MOST_BYTES = 20_000_000  # of the end of a file
_BEFORE, _AFTER = 60, 3  # lines around one that belong to it: a traceback ends with its error
_MOST_SHOWN = 160
_LAST = 3
_FOLDERS = (".", "workers", "logs", "logs/workers")
_ENDINGS = (".log", ".out", ".err", ".txt")
_ERROR_LINE = re.compile(r"\b\w*(?:Error|Exception|Died)\b: \S")
_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in KNOWN_ERRORS))
_ROWS = [(row, re.compile(row.pattern), re.compile(row.context)) for row in KNOWN_ERRORS]


@dataclass
class Occurrence:
    """A known error that was found: its first place, and how often it occurs."""

    row: KnownError
    place: str
    line: str
    count: int = 0


def log_files(path: str) -> list[Path]:
    """The file, or the logs of a run's directory. Raises ConfigError if there is none."""
    status = path_info(path)
    if status.is_file:
        return [status.path]
    if not status.is_directory:
        raise ConfigError(f"--log: {status.why}. Name a log file, or the output_dir or logging_dir of a run.")
    logs = [
        file
        for folder in _FOLDERS
        if (status.path / folder).is_dir()
        for file in sorted((status.path / folder).iterdir())
        if file.suffix in _ENDINGS and file.is_file()
    ]
    if not logs:
        raise ConfigError(f"--log: {status.path} has no logs, nor have its folders logs and workers. Name a log file.")
    return logs


def log_findings(logs: Sequence[Path]) -> Iterator[Finding]:
    """Yield known errors that occur in the files, causes before their consequences; the last errors if none is
    known."""
    hits: dict[str, Occurrence] = {}
    last: list[str] = []
    for file in logs:
        last += _read(file, hits)
    for hit in sorted(hits.values(), key=lambda each: each.row.follows):
        row, times = hit.row, f", {hit.count} times" if hit.count > 1 else ""
        what = f"{row.name} ({hit.place}{times}). {row.cause}"
        yield Finding("hint" if row.follows else "problem", what, row.where, row.fix, hit.line)
    if not hits:
        count = f"{len(logs)} file{'s' if len(logs) > 1 else ''}"
        yield Finding("ok", f"none of {len(KNOWN_ERRORS)} known errors is in {count}")
        yield from (Finding("hint", "an error that is not known", observed=line) for line in last[-_LAST:])


def _read(file: Path, hits: dict[str, Occurrence]) -> list[str]:
    """Adds to `observed`; returns the lines that look like errors, the last ones."""
    lines = _text(file).splitlines()
    errors: list[str] = []
    for number, line in enumerate(lines):
        if _ERROR_LINE.search(line):
            errors.append(f"{file.name}: {_shown(line)}")
        if _ANY.search(line) is None:
            continue
        around = "\n".join(lines[max(number - _BEFORE, 0) : number + _AFTER + 1])
        row = next((row for row, pattern, near in _ROWS if pattern.search(line) and near.search(around)), None)
        if row is not None:
            hit = hits.setdefault(row.name, Occurrence(row, f"{file.name}:{number + 1}", _shown(line)))
            hit.count += 1
    return errors[-_LAST:]


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - _MOST_BYTES, 0))
        return stream.read().decode("utf-8", "replace")


def _shown(line: str) -> str:
    text = mask(line.strip())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


# Whether a run learns.

_NUM_SAMPLES = 2
_SLOWER = 1.5  # than the forecast
_MOST_OF_A_TEXT = 80  # characters of a text


def health_findings(directory: Path) -> Iterator[Finding]:
    """Findings of the rules about a run, with samples of its responses. Raises ConfigError where there is none."""
    run = read_run(directory)
    result = verdict(History.of(read_metrics(run.metrics), run.config))
    yield Finding("hint" if result.label in ("worse", "flat") else "ok", f"{result.label}: {result.says}")
    if (compared := comparison(run.metrics.parent)) is not None:
        level, before = ("hint", "slower than forecast: ") if compared[0] > _SLOWER else ("ok", "")
        yield Finding(level, f"{before}{compared[1]} (docs/forecast.md)")
    samples = "; ".join(_samples(run))
    for symptom in result.symptoms:
        what = f"{symptom.label}: {symptom.diagnosis.says} ({PAGE})"
        fix = "; ".join(f"{number}. {cause}" for number, cause in enumerate(symptom.diagnosis.causes, 1))
        yield Finding("problem", what, fix=f"Look for {fix}", observed=samples)
        samples = ""  # once
    if not result.symptoms:
        yield Finding("ok", "no rule applies")


def _samples(run: RunFiles) -> Iterator[str]:
    """The first responses of the last training step that was recorded."""
    files = run.record_files("train")
    if files:
        step = max(files)
        for record in islice(read(files[step]), _NUM_SAMPLES):
            texts = [show(text[-_MOST_OF_A_TEXT:]) for text in (record.prompt_text, record.response_text)]
            truth = f", truth {show(record.ground_truth[:_MOST_OF_A_TEXT])}" if record.ground_truth else ""
            yield f"step {step}: {texts[0]} -> {texts[1]}, reward {record.reward}{truth}"
