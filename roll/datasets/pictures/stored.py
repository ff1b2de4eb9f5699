"""Pictures in parquet files: rows are read without them, and each is read when it is needed."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from roll.datasets.remote import protocol_of
from roll.errors import PictureError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_PLACE = re.compile(r"(.*)#(\d+)/(.*)/(\d+)", re.DOTALL)
_ROWS_AT_ONCE = 16  # of pictures whose bytes have to be passed over
_BATCH_ROWS = 512  # of the other columns
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredPicture:
    """A picture that stayed in its parquet file. `place`: FILE#ROW/COLUMN/INDEX; lists of lists count as one list."""

    place: str

    @staticmethod
    def at(file: str, row: int, column: str, index: int) -> StoredPicture:
        name = file if protocol_of(file) else str(Path(file).absolute())
        return StoredPicture(f"{name}#{row}/{column}/{index}")


def parquet_file(stream: IO[bytes]) -> pyarrow.parquet.ParquetFile:
    """A parquet file that is read in pieces: by default whole row groups are fetched ahead, with all their pictures."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def picture_columns(schema: pyarrow.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns that hold bytes of pictures: struct<bytes, path>, binary, or lists of one of these."""
    return [name for name in names if name in schema.names and _holds_bytes(schema.field(name).type)]


def _holds_bytes(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    while types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    if types.is_struct(kind) and "bytes" in kind.names:
        kind = kind.field("bytes").type
    return types.is_binary(kind) or types.is_large_binary(kind)


def rows_with_stored(stream: IO[bytes], name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, with `stored_pictures` in those of `columns` that hold pictures."""
    file = parquet_file(stream)
    apart = picture_columns(file.schema_arrow, columns)
    held = [stored_pictures(file, name, column) for column in apart]
    others = [each for each in file.schema_arrow.names if each not in apart]
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=others):
        for record in batch.to_pylist():
            yield {**record, **{column: next(values) for column, values in zip(apart, held, strict=True)}}


def stored_pictures(file: pyarrow.parquet.ParquetFile, name: str, column: str) -> Iterator[Any]:
    """Yield a column's value in each row, with a StoredPicture in place of the bytes of each picture, and None where
    they are null or empty. Bytes are not kept. `name`: the file's."""
    row = 0
    for group in range(file.metadata.num_row_groups):
        for value in _group_values(file, group, column):
            indices = itertools.count()
            yield _without_bytes(value, lambda index, row=row: StoredPicture.at(name, row, column, index), indices)
            row += 1


def _without_bytes(value: Any, stored: Callable[[int], StoredPicture], indices: Iterator[int]) -> Any:
    """`indices`: of the pictures of the row, whose lists count as one."""
    if isinstance(value, list):
        return [_without_bytes(inner, stored, indices) for inner in value]
    index = next(indices)
    if isinstance(value, dict):
        return {**value, "bytes": stored(index) if value["bytes"] else None}
    return stored(index) if value else None


def _group_values(file: pyarrow.parquet.ParquetFile, group: int, column: str) -> Iterator[Any]:
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[column], use_threads=False):
        yield from batch.column(column).to_pylist()


def flat(value: Any) -> Iterator[Any]:
    """Yield the items of lists, at any depth; a value that is not a list is yielded itself."""
    if isinstance(value, list | tuple) or is_array(value):
        for inner in value:
            yield from flat(inner)
    else:
        yield value


def is_array(value: Any) -> bool:
    """True of numpy's arrays of objects, which come from parquet files."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype == object


def read_stored(place: str) -> bytes:
    """The bytes of a picture in a parquet file. Raises PictureError."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise PictureError(f"{place} is not FILE#ROW/COLUMN/INDEX of a parquet file")
    name, row, column, index = match[1], int(match[2]), match[3], int(match[4])
    try:
        value = _value(name, column, row)
        held = list(flat(value))[index]
    except Exception as error:  # of pyarrow and of fsspec, and of a file that has changed since
        raise PictureError(f"{place} cannot be read: {error}") from error
    contents = held.get("bytes") if isinstance(held, dict) else held
    if not contents:
        raise PictureError(f"{place} holds no picture")
    return contents


def _value(name: str, column: str, row: int) -> Any:
    """Return the value of a column in a row. Its row group is read, and kept until another one is."""
    group, before = _row_group(_parquet(name), row)
    return _column(name, column, group)[row - before].as_py()


@functools.lru_cache(maxsize=1)
def _parquet(name: str) -> pyarrow.parquet.ParquetFile:
    return parquet_file(_open(name))


@functools.lru_cache(maxsize=1)
def _column(name: str, column: str, group: int) -> pyarrow.ChunkedArray:
    return _parquet(name).read_row_group(group, columns=[column], use_threads=False).column(column)


def _row_group(file: pyarrow.parquet.ParquetFile, row: int) -> tuple[int, int]:
    """The row group that a row is in, and the number of rows before it."""
    before = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if row < before + rows:
            return number, before
        before += rows
    raise IndexError(f"there is no row {row}")


def _open(name: str) -> IO[bytes]:
    if protocol_of(name) is None:
        return open(name, "rb")
    import fsspec

    opener: Any = fsspec.open(name, "rb")
    return opener.open()
