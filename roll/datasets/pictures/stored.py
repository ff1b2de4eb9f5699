"""Pictures in parquet files: rows are read without them, and each is read when it is needed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from roll.datasets.remote import protocol_of
from roll.errors import PictureError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_PLACE = re.compile(r"(.*)#(\d+)/(.*)/(\d+)", re.DOTALL)
_ROWS_AT_ONCE = 16  # of pictures whose bytes have to be passed over
_ROWS_READ = 4  # of a row group at once, on the way to a picture
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredPicture:
    """A picture that stayed in its parquet file. `place`: FILE#ROW/COLUMN/INDEX."""

    place: str

    @staticmethod
    def at(file: str, row: int, column: str, index: int) -> StoredPicture:
        return StoredPicture(f"{file}#{row}/{column}/{index}")


def parquet_file(stream: IO[bytes]) -> pyarrow.parquet.ParquetFile:
    """A parquet file that is read in pieces: by default whole row groups are fetched ahead, with all their pictures."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def picture_columns(schema: pyarrow.Schema, names: Sequence[str]) -> list[str]:
    """Those of the columns that hold bytes of pictures: struct<bytes, path>, binary, or lists of one of these."""
    return [name for name in names if name in schema.names and _holds_bytes(schema.field(name).type)]


def _holds_bytes(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    if types.is_struct(kind):
        return "bytes" in kind.names and _is_binary(kind.field("bytes").type)
    return _is_binary(kind)


def _is_binary(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return types.is_binary(kind) or types.is_large_binary(kind)


def stored_pictures(
    file: pyarrow.parquet.ParquetFile, name: str, column: str
) -> Iterator[list[StoredPicture] | StoredPicture | None]:
    """What stands for a column's pictures in each row, in the column's own shape. Bytes are read only where the file
    says in no other way whether a picture is there, and are not kept. `name`: the file's."""
    row = 0
    leaf = _cheapest_leaf(file.schema_arrow, column)
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[leaf], use_threads=False):
        values = batch.column(0)
        is_list = hasattr(values, "value_lengths")
        lengths = values.value_lengths().to_pylist() if is_list else values.is_valid().to_pylist()
        for length in lengths:
            pictures = [StoredPicture.at(name, row, column, index) for index in range(int(length or 0))]
            yield pictures if is_list else next(iter(pictures), None)
            row += 1


def _cheapest_leaf(schema: pyarrow.Schema, column: str) -> str:
    """The part of a column that tells how many pictures a row has: the paths, where there are some beside the bytes.

    Example: "image" of struct<bytes, path> -> "image.path".
    """
    import pyarrow.types as types

    kind, path = schema.field(column).type, column
    while types.is_list(kind) or types.is_large_list(kind):
        path, kind = f"{path}.list.{kind.value_field.name}", kind.value_type
    if not types.is_struct(kind):
        return column
    other = next((name for name in kind.names if not types.is_nested(kind.field(name).type) and name != "bytes"), None)
    return column if other is None else f"{path}.{other}"


def read_stored(place: str) -> tuple[bytes | None, str | None]:
    """The bytes of a picture in a parquet file, and the path that stands beside them. Raises PictureError."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise PictureError(f"{place} is not FILE#ROW/COLUMN/INDEX of a parquet file")
    name, row, column, index = match[1], int(match[2]), match[3], int(match[4])
    try:
        value = _value(name, column, row)
        held = value[index] if isinstance(value, list) else value
    except Exception as error:  # of pyarrow and of fsspec, and of a file that has changed since
        raise PictureError(f"{place} cannot be read: {error}") from error
    return (held.get("bytes"), held.get("path")) if isinstance(held, dict) else (held, None)


def _value(name: str, column: str, row: int) -> Any:
    """What stands in a row of a column."""
    if row < _cursor(name, column).row:
        _cursor.cache_clear()
    return _cursor(name, column).value(row)


class _Cursor:
    """A place in a column from which pictures are read on, `row` at the earliest. Whoever reads the rows of a row group
    in their order reads it once; for any other row the rows before it are passed over, and not kept."""

    def __init__(self, name: str, column: str):
        self._file, self._column = parquet_file(_open(name)), column
        self._batches: Iterator[Any] = iter(())
        self._values: Any = ()
        self._end = 0  # of the row group
        self.row = 0  # of the first of the values

    def value(self, row: int) -> Any:
        if row >= self._end:
            number, self.row = _row_group(self._file, row)
            self._end = self.row + self._file.metadata.row_group(number).num_rows
            self._values = ()
            self._batches = self._file.iter_batches(
                _ROWS_READ, row_groups=[number], columns=[self._column], use_threads=False
            )
        while row >= self.row + len(self._values):
            self.row += len(self._values)
            self._values = next(self._batches).column(0)
        return self._values[row - self.row].as_py()


@functools.lru_cache(maxsize=1)
def _cursor(name: str, column: str) -> _Cursor:
    """The cursor of the column that was read last."""
    return _Cursor(name, column)


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
