"""What the scripts beside it share: rows of a data set as it is published become rows that roll reads."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roll.datasets.loader import ENDINGS, DataFile
from roll.errors import ConfigError

Row = dict[str, Any]
Convert = Callable[[Mapping[str, Any], Path], Row | None]
"""A row of roll's, from one as it is published; None leaves it out. The path is the folder that is written to, for what
does not fit into a row. Raises BadRow, KeyError or TypeError for what is no row of the data set."""
Read = Callable[[Path], Iterator[tuple[str, Mapping[str, Any]]]]
"""(place, columns) of each row of a file."""

BOXED = "Reason step by step, and put your final answer within \\boxed{}."


class BadRow(ValueError):
    """A row that is not of this data set; the text says why."""


def published_rows(source: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, columns) of each row of a .json, .jsonl, .csv or .parquet file."""
    format = ENDINGS.get(source.suffix.lower())
    if format is None:
        raise BadRow(f"{source} does not end in {', '.join(ENDINGS)}")
    try:
        for row in DataFile(source, format, "the file").rows():
            yield row.where, row.values
    except ConfigError as error:
        raise BadRow(str(error)) from error


def converted(rows: Iterable[tuple[str, Mapping[str, Any]]], convert: Convert, out: Path) -> Iterator[Row]:
    for where, values in rows:
        try:
            row = convert(values, out)
        except BadRow as error:
            raise BadRow(f"{where}: {error}") from error
        except (KeyError, TypeError) as error:
            has = ", ".join(map(str, values))
            raise BadRow(f"{where}: not a row of this data set ({error!r}); it has the columns {has}") from error
        if row is not None:
            yield row


def target_of(source: Path, out: Path) -> Path:
    return out / f"{source.stem}.jsonl"


def prepare(source: Path, convert: Convert, out: Path, read: Read = published_rows) -> tuple[Path, int]:
    """The file that was written, and its rows. Nothing is written when a row is bad."""
    target = target_of(source, out)
    if target.resolve() == source.resolve():
        raise BadRow(f"{source} would be overwritten; choose another --out")
    rows = list(converted(read(source), convert, out))
    if not rows:
        raise BadRow(f"{source}: no rows")
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / f".{target.name}.unfinished"
    unfinished.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(unfinished, target)
    return target, len(rows)


def main(doc: str | None, name: str, convert: Convert, read: Read = published_rows) -> int:
    """The command line of a script; `doc` is its docstring, `name` that of the folder under data/."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    parser.add_argument("files", nargs="+", type=Path, help="files of the data set, each becomes one of the same name")
    parser.add_argument("--out", type=Path, default=Path("data") / name, help="folder for what is written")
    given = parser.parse_args()
    written: dict[Path, Path] = {}
    for source in given.files:
        if (other := written.setdefault(target_of(source, given.out), source)) is not source:
            print(f"{other} and {source} would be written to one file; choose another --out for each", file=sys.stderr)
            return 2
    for source in given.files:
        try:
            target, count = prepare(source, convert, given.out, read)
        except (BadRow, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{target}: {count} rows")
    return 0


def text(values: Mapping[str, Any], *columns: str) -> str:
    """The text of the first of these columns that has one. Raises BadRow where none has."""
    for column in columns:
        if isinstance(value := values.get(column), str) and value.strip():
            return value.strip()
    raise BadRow(f"needs the text {' or '.join(f'`{column}`' for column in columns)}; it has {', '.join(values)}")
