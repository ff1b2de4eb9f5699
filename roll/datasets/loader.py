"""Rows out of files: JSON, JSON lines, CSV and parquet. A row remembers its place, for messages and task ids."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from roll.configs.data import DataArgs
from roll.datasets.json_text import Parsed, parse, parse_whole, skip_space
from roll.errors import ConfigError
from roll.utils.paths import look_at

ENDINGS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
FORMATS = {"json": "json", "jsonl": "json", "csv": "csv", "parquet": "parquet"}
_Found = tuple[int, dict[str, Any], str]  # place, columns, fault
MAX_CSV_FIELD_CHARS = 1 << 30  # the csv module's own limit of 128 KiB is shorter than a long conversation


@dataclass(frozen=True)
class Row:
    """One record. `place` is its line in a text file (from 1), or its position in an array or parquet file (from 0);
    `fault` says what makes it no row, "" if nothing does."""

    file: str
    place: int
    values: Mapping[str, Any]
    fault: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.place}"


@dataclass(frozen=True)
class DataFile:
    """A file as the configuration names it, and the format it is read in: json (arrays and lines), csv or parquet."""

    path: Path
    format: str
    key: str  # the YAML key that names it

    def rows(self) -> Iterator[Row]:
        """Raises ConfigError where the file cannot be read as its format."""
        try:
            for place, values, fault in READERS[self.format](self.path):
                yield Row(str(self.path), place, values, fault)
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            raise ConfigError(
                f"{self.key}: {self.path} is not UTF-8 (it holds the byte 0x{bad:02x}); save it as UTF-8"
            ) from error
        except (OSError, csv.Error) as error:
            raise ConfigError(f"{self.key}: cannot read {self.path} as {self.format}: {error}") from error
        except _Malformed as error:
            raise ConfigError(f"{self.key}: {self.path}:{error.place}: {error.reason}") from error


class _Malformed(Exception):
    def __init__(self, place: int, reason: str):
        self.place, self.reason = place, reason
        super().__init__(place, reason)


def data_files(args: DataArgs, key: str) -> tuple[list[DataFile], list[str]]:
    """The files of `data_args` (at YAML path `key`) that exist, and a message for each problem with the others."""
    files: list[DataFile] = []
    if not args.file_name:
        return [], [f"{key}.file_name is not set: name one or several .json, .jsonl, .csv or .parquet files"]
    if len(args.dataset_type) not in (0, 1, len(args.file_name)):
        counts = f"{len(args.dataset_type)} entries for {len(args.file_name)} files in {key}.file_name"
        return [], [
            f"{key}.dataset_type has {counts}: give one for all, one each, or none (the file name's ending decides)"
        ]
    types = args.dataset_type * (len(args.file_name) if len(args.dataset_type) == 1 else 1)
    problems: list[str] = []
    for i, name in enumerate(args.file_name):
        found = _data_file(name, types[i] if types else None, key)
        (problems if isinstance(found, str) else files).append(found)  # type: ignore[arg-type]
    return files, problems


def _data_file(name: str, dataset_type: str | None, key: str) -> DataFile | str:
    look = look_at(name)
    path = look.path
    if look.is_directory:
        return f"{key}.file_name: {name} is a directory; list the files in it"
    if look.kind in ("hidden", "impossible", "device"):
        return f"{key}.file_name: {look.why}"
    if not look.is_file:
        tried = "" if path.is_absolute() else f" (relative to {Path.cwd()})"
        return f"{key}.file_name: {name} does not exist{tried}"
    by_ending = ENDINGS.get(path.suffix.lower())
    if dataset_type is None:
        if by_ending is None:
            known = ", ".join(ENDINGS)
            return f"{key}.file_name: {name} does not end in {known}; say what it is with {key}.dataset_type"
        return DataFile(path, by_ending, f"{key}.file_name")
    by_type = FORMATS.get(dataset_type)
    if by_type is None:
        return f"{key}.dataset_type: {dataset_type!r} is not one of {', '.join(FORMATS)}"
    if by_ending not in (None, by_type):
        contradiction = f"{key}.dataset_type says {dataset_type}, but {name} ends in {path.suffix}"
        return f"{contradiction}; leave dataset_type out or correct it"
    return DataFile(path, by_type, f"{key}.file_name")


def _read_json(path: Path) -> Iterator[_Found]:
    with path.open(encoding="utf-8-sig") as stream:
        if _first_character(stream) == "[":
            yield from _read_json_array(stream.read())
        else:
            yield from _read_json_lines(stream)


def _first_character(stream: IO[str]) -> str:
    """The first character that is not white space, '' in an empty file; the stream stands at its beginning again."""
    character = stream.read(1)
    while character.isspace():
        character = stream.read(1)
    stream.seek(0)
    return character


def _read_json_array(text: str) -> Iterator[_Found]:
    """One record after the other, so that each is told with its own place."""
    try:
        at, place = skip_space(text, text.index("[") + 1), 0
        more = text[at : at + 1] != "]"
        while more:
            parsed = parse(text, at)
            yield place, *_as_record(parsed, place)
            at, place = skip_space(text, parsed.end), place + 1
            more = text[at : at + 1] == ","
            if not more and text[at : at + 1] != "]":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at += more
        if text[at + 1 :].strip():
            raise json.JSONDecodeError("Extra data", text, at + 1)
    except json.JSONDecodeError as error:
        raise _Malformed(error.lineno, f"not a JSON array: {error.msg}") from error


def _read_json_lines(stream: IO[str]) -> Iterator[_Found]:
    for place, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            parsed = parse_whole(line)
        except json.JSONDecodeError as error:
            raise _Malformed(place, f"not a JSON object on one line: {error.msg}") from error
        yield place, *_as_record(parsed, place)


def _as_record(parsed: Parsed, place: int) -> tuple[dict[str, Any], str]:
    if parsed.fault:
        return {}, parsed.fault
    if not isinstance(parsed.value, dict):
        raise _Malformed(place, f"a row must be an object of columns, not {type(parsed.value).__name__}")
    return parsed.value, ""


def _read_csv(path: Path) -> Iterator[_Found]:
    csv.field_size_limit(MAX_CSV_FIELD_CHARS)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        names = reader.fieldnames or []
        if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise _Malformed(1, f"the header names a column twice: {', '.join(repeated)}")
        for record in reader:
            if None in record or None in record.values():
                raise _Malformed(
                    reader.line_num, f"does not have the {len(names)} fields of the header; quote commas and line ends"
                )
            yield reader.line_num, record, ""


def _read_parquet(path: Path) -> Iterator[_Found]:
    import pyarrow
    import pyarrow.parquet

    try:
        place = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                yield place, record, ""
                place += 1
    except pyarrow.ArrowException as error:
        raise _Malformed(0, f"not a parquet file: {error}") from error


READERS: Mapping[str, Callable[[Path], Iterator[_Found]]] = {
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
