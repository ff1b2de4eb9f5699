"""Rows out of files: JSON, JSON lines, CSV and parquet. A row remembers its place, for messages and task ids."""

from __future__ import annotations

import csv
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from roll.datasets.remote import fetch
from roll.errors import ConfigError
from roll.utils.secrets import mask
from roll.utils.truths import entry_at

ENDINGS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
FORMATS = {"json": "json", "jsonl": "json", "csv": "csv", "parquet": "parquet"}
_ReadRow = tuple[int, dict[str, Any]]  # place, columns
_ROWS_AT_ONCE = 512  # of parquet
MAX_CSV_FIELD_CHARS = 1 << 30  # the csv module's own limit of 128 KiB is shorter than a long conversation


@dataclass(frozen=True)
class Row:
    """One record. `place` is its line in a text file (from 1), or its position in an array or parquet file (from 0)."""

    file: str
    place: int
    values: Mapping[str, Any]

    @property
    def where(self) -> str:
        return f"{self.file}:{self.place}"

    @property
    def short_place(self) -> str:
        """Its file, without folders, and its place in it."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.place}"

    def value(self, column: str) -> Any:
        """Return the value of a column, or of an entry in a column of mappings (or of JSON texts), at any depth, as
        in reward_model.ground_truth.target. None where nothing is."""
        return entry_at(self.values, column)

    def without(self, columns: Sequence[str]) -> Row:
        """The same row without some columns, or entries of columns."""
        values = self.values
        for column in columns:
            values = _without(values, column)
        return self if values is self.values else replace(self, values=values)


def _without(values: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The same mapping where nothing is at the path."""
    if path in values:
        return {name: inner for name, inner in values.items() if name != path}
    names = path.split(".")
    for place in range(len(names) - 1, 0, -1):
        start = ".".join(names[:place])
        inner = values.get(start)
        if isinstance(inner, Mapping) and (rest := _without(inner, ".".join(names[place:]))) is not inner:
            return {**values, start: rest}
    return values


class DataSource(ABC):
    """Rows under one name. `key`: the YAML key that names it."""

    key: str

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the set in messages and rows."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Raises ConfigError where they cannot be read."""

    @abstractmethod
    def is_large(self, num_bytes: int) -> bool:
        """True if it has more than about so many bytes. Raises ConfigError where it cannot be read."""

    def without_pictures(self, columns: Sequence[str]) -> DataSource:
        """The same rows, with a StoredPicture for each picture in these columns, where a format can leave them out."""
        del columns
        return self


@dataclass(frozen=True)
class DataFile(DataSource):
    """A file of this machine, and the format it is read in: json (arrays and lines), csv or parquet."""

    path: Path
    format: str
    key: str
    picture_columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.path)

    def rows(self) -> Iterator[Row]:
        try:
            with self.path.open("rb") as stream:
                yield from read_rows(stream, self.format, self.name, self.key, self.picture_columns)
        except OSError as error:
            raise ConfigError(f"{self.key}: cannot read {self.name} as {self.format}: {error}") from error

    def is_large(self, num_bytes: int) -> bool:
        return self.path.stat().st_size > num_bytes

    def without_pictures(self, columns: Sequence[str]) -> DataSource:
        return replace(self, picture_columns=tuple(columns))


@dataclass(frozen=True)
class RemoteFile(DataSource):
    """A file elsewhere. It is fetched when it is first read, once per process."""

    url: str
    format: str
    key: str
    picture_columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return mask(self.url)

    def rows(self) -> Iterator[Row]:
        yield from read_rows(self._fetch(), self.format, self.name, self.key, self.picture_columns)

    def without_pictures(self, columns: Sequence[str]) -> DataSource:
        """An address with credentials in it names no pictures, since checkpoints hold the names: they are read."""
        return self if self.name != self.url else replace(self, picture_columns=tuple(columns))

    def is_large(self, num_bytes: int) -> bool:
        return self._fetch().seek(0, os.SEEK_END) > num_bytes

    def _fetch(self) -> IO[bytes]:
        try:
            return fetch(self.url)
        except ConfigError as error:
            raise ConfigError(f"{self.key}: {error}") from error


def read_rows(stream: IO[bytes], format: str, name: str, key: str, pictures: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file's contents; `name` and `key` are for messages. Pictures in the columns `pictures` stay in a
    parquet file. Raises ConfigError where it is not of its format. The stream stays open."""
    try:
        read = _read_parquet(stream, name, pictures) if format == "parquet" else _TEXT_READERS[format](stream)
        for place, values in read:
            yield Row(name, place, values)
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        raise ConfigError(f"{key}: {name} is not UTF-8 (it holds the byte 0x{bad:02x}); save it as UTF-8") from error
    except csv.Error as error:
        raise ConfigError(f"{key}: cannot read {name} as {format}: {error}") from error
    except _Malformed as error:
        raise ConfigError(f"{key}: {name}:{error.place}: {error.reason}") from error


class _Malformed(Exception):
    def __init__(self, place: int, reason: str):
        self.place, self.reason = place, reason
        super().__init__(place, reason)


@contextmanager
def _text(stream: IO[bytes], newline: str | None = None) -> Iterator[IO[str]]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline=newline)
    try:
        yield text
    finally:
        text.detach()  # else it closes the stream


def _read_json(stream: IO[bytes]) -> Iterator[_ReadRow]:
    with _text(stream) as text:
        if _first_character(text) == "[":
            yield from _read_json_array(text.read())
        else:
            yield from _read_json_lines(text)


def _first_character(stream: IO[str]) -> str:
    """The first character that is not white space, '' in an empty file; the stream stands at its beginning again."""
    character = stream.read(1)
    while character.isspace():
        character = stream.read(1)
    stream.seek(0)
    return character


def _read_json_array(text: str) -> Iterator[_ReadRow]:
    try:
        records = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise _Malformed(line, f"not a JSON array: {getattr(error, 'msg', error)}") from error
    for place, record in enumerate(records):
        yield place, _as_record(record, place)


def _read_json_lines(stream: IO[str]) -> Iterator[_ReadRow]:
    for place, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            cause = getattr(error, "msg", error)
            raise _Malformed(place, f"not a JSON object on one line: {cause}") from error
        yield place, _as_record(record, place)


def _as_record(record: Any, place: int) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise _Malformed(place, f"a row must be an object of columns, not {type(record).__name__}")
    return record


def _read_csv(stream: IO[bytes]) -> Iterator[_ReadRow]:
    csv.field_size_limit(MAX_CSV_FIELD_CHARS)
    with _text(stream, newline="") as text:
        reader = csv.DictReader(text, strict=True)
        names = reader.fieldnames or []
        if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise _Malformed(1, f"the header names a column twice: {', '.join(repeated)}")
        for record in reader:
            if None in record or None in record.values():
                raise _Malformed(
                    reader.line_num, f"does not have the {len(names)} fields of the header; quote commas and line ends"
                )
            yield reader.line_num, record


def _read_parquet(stream: IO[bytes], name: str, pictures: Sequence[str]) -> Iterator[_ReadRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        if pictures:
            from roll.datasets.sight import sight

            records = sight().parquet_rows(stream, name, pictures)
        else:
            batches = pyarrow.parquet.ParquetFile(stream).iter_batches(batch_size=_ROWS_AT_ONCE)
            records = (record for batch in batches for record in batch.to_pylist())
        yield from enumerate(records)
    except pyarrow.ArrowException as error:
        raise _Malformed(0, f"not a parquet file: {error}") from error


_TEXT_READERS: Mapping[str, Callable[[IO[bytes]], Iterator[_ReadRow]]] = {
    "json": _read_json,
    "csv": _read_csv,
}
