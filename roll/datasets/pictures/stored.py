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
_ROWS_AT_ONCE = 64  # of pictures whose bytes have to be passed over


@dataclass(frozen=True)
class StoredPicture:
    """A picture that stayed in its parquet file. `place`: FILE#ROW/COLUMN/INDEX."""

    place: str

    @staticmethod
    def at(file: str, row: int, column: str, index: int) -> StoredPicture:
        return StoredPicture(f"{file}#{row}/{column}/{index}")


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
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[_cheapest_leaf(file.schema_arrow, column)]):
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
        first, values = _row_group(name, column, row)
        value = values[row - first].as_py()
        held = value[index] if isinstance(value, list) else value
    except Exception as error:  # of pyarrow and of fsspec, and of a file that has changed since
        raise PictureError(f"{place} cannot be read: {error}") from error
    return (held.get("bytes"), held.get("path")) if isinstance(held, dict) else (held, None)


@functools.lru_cache(maxsize=4)
def _starts(name: str) -> list[int]:
    """The first row of each row group, and the number of rows."""
    import pyarrow.parquet

    with _open(name) as stream:
        metadata = pyarrow.parquet.ParquetFile(stream).metadata
    starts = [0]
    for number in range(metadata.num_row_groups):
        starts.append(starts[-1] + metadata.row_group(number).num_rows)
    return starts


def _row_group(name: str, column: str, row: int) -> tuple[int, Any]:
    """The first row of the row group that a row is in, and the column's values in it."""
    starts = _starts(name)
    number = next(n for n in range(len(starts) - 1) if starts[n] <= row < starts[n + 1])
    return starts[number], _column_of(name, column, number)


@functools.lru_cache(maxsize=1)
def _column_of(name: str, column: str, number: int) -> Any:
    """A column of one row group. The last one is kept, for rows that are read in order."""
    import pyarrow.parquet

    with _open(name) as stream:
        return pyarrow.parquet.ParquetFile(stream).read_row_group(number, columns=[column]).column(column)


def _open(name: str) -> IO[bytes]:
    if protocol_of(name) is None:
        return open(name, "rb")
    import fsspec

    opener: Any = fsspec.open(name, "rb")
    return opener.open()
