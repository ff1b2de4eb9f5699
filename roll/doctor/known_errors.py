"""A log file, or what a run's directory has of logs, held against the errors that are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.doctor.finding import Finding
from roll.doctor.row import KnownError
from roll.doctor.table import KNOWN_ERRORS
from roll.errors import ConfigError
from roll.utils.files import look_at
from roll.utils.secrets import mask

_MOST_BYTES = 20_000_000  # of the end of a file
_BEFORE, _AFTER = 60, 3  # lines around one that belong to it: a traceback ends with its error
_MOST_SHOWN = 160
_LAST = 3
_FOLDERS = (".", "workers", "logs", "logs/workers")
_ENDINGS = (".log", ".out", ".err", ".txt")
_ERROR_LINE = re.compile(r"\b\w*(?:Error|Exception|Died)\b: \S")
_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in KNOWN_ERRORS))
_ROWS = [(row, re.compile(row.pattern), re.compile(row.near)) for row in KNOWN_ERRORS]


@dataclass
class Seen:
    """A known error that was found: its first place, and how often it occurs."""

    row: KnownError
    place: str
    line: str
    count: int = 0


def log_files(given: str) -> list[Path]:
    """The file, or the logs of a run's directory. Raises ConfigError if there is none."""
    look = look_at(given)
    if look.is_file:
        return [look.path]
    if not look.is_directory:
        raise ConfigError(f"--log: {look.why}. Name a log file, or the output_dir or logging_dir of a run.")
    found = [
        file
        for folder in _FOLDERS
        if (look.path / folder).is_dir()
        for file in sorted((look.path / folder).iterdir())
        if file.suffix in _ENDINGS and file.is_file()
    ]
    if not found:
        raise ConfigError(f"--log: {look.path} has no logs, nor have its folders logs and workers. Name a log file.")
    return found


def log_findings(files: Sequence[Path]) -> Iterator[Finding]:
    """What is known of their errors, causes before what follows from them; the last errors if nothing is known."""
    seen: dict[str, Seen] = {}
    last: list[str] = []
    for file in files:
        last += _read(file, seen)
    for found in sorted(seen.values(), key=lambda each: each.row.follows):
        row, times = found.row, f", {found.count} times" if found.count > 1 else ""
        what = f"{row.name} ({found.place}{times}). {row.cause}"
        yield Finding("hint" if row.follows else "problem", what, row.where, row.fix, found.line)
    if not seen:
        count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
        yield Finding("ok", f"none of {len(KNOWN_ERRORS)} known errors is in {count}")
        yield from (Finding("hint", "an error that is not known", seen=line) for line in last[-_LAST:])


def _read(file: Path, seen: dict[str, Seen]) -> list[str]:
    """Adds to `seen`; returns the lines that look like errors, the last ones."""
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
            found = seen.setdefault(row.name, Seen(row, f"{file.name}:{number + 1}", _shown(line)))
            found.count += 1
    return errors[-_LAST:]


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - _MOST_BYTES, 0))
        return stream.read().decode("utf-8", "replace")


def _shown(line: str) -> str:
    text = mask(line.strip())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
