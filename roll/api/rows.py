"""Rows of a Python program as the file that a run reads."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roll.api.keys import a_kind
from roll.errors import ConfigError
from roll.utils.files import write_whole
from roll.utils.text import show

FOLDER = "~/.cache/roll/rows"
Data = str | os.PathLike[str] | Iterable[Any]
_FORMS = 'a path, a list of rows such as {"prompt": ..., "ground_truth": ...}, or one split of a datasets.Dataset'


def file_names(key: str, data: Data) -> str | list[str]:
    """Return `file_name` for these data: paths as they are; rows are written to a file of ~/.cache/roll/rows named by a
    hash of its content, so that equal rows share a file. Raises ConfigError for data without rows."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if isinstance(data, Mapping):
        named = f": it has {', '.join(map(str, data))}" if len(data) <= 8 else ""
        raise ConfigError(f"{key} is a mapping{named}. Give {_FORMS}.")
    if hasattr(data, "iterrows") and hasattr(data, "to_dict"):  # a pandas.DataFrame
        data = data.to_dict(orient="records")  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise ConfigError(f"{key}: {show(data)} is {a_kind(data)}. Give {_FORMS}.")
    rows = list(data)
    if rows and all(isinstance(row, str | os.PathLike) for row in rows):
        return [os.fspath(row) for row in rows]
    if not rows:
        raise ConfigError(f"{key} is empty: it has no rows to learn from. Give {_FORMS}.")
    return str(_written(key, "".join(_line(key, number, row) for number, row in enumerate(rows, 1))))


def _line(key: str, number: int, row: Any) -> str:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{key}: row {number} is {a_kind(row)}, not a mapping of columns. Give {_FORMS}.")
    if not row:
        raise ConfigError(f"{key}: row {number} has no columns.")
    try:
        return json.dumps(dict(row), default=_plain, ensure_ascii=False) + "\n"
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(_why_not(key, number, row)) from None


def _why_not(key: str, number: int, row: Mapping[Any, Any]) -> str:
    for column, value in row.items():
        try:
            json.dumps({column: value}, default=_plain)
        except (TypeError, ValueError, RecursionError):
            what = f"{a_kind(value)}"
            return f"{key}: row {number}, column {show(column)} holds {what}, which JSON cannot. Make it a text."
    return f"{key}: row {number} cannot be written as JSON."


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy, dates, paths."""
    for method in ("tolist", "isoformat", "__fspath__"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    raise TypeError


def _written(key: str, text: str) -> Path:
    data = text.encode("utf-8", errors="surrogatepass")
    place = Path(FOLDER).expanduser() / f"{hashlib.sha256(data).hexdigest()[:16]}.jsonl"
    try:
        if not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, data)
    except OSError as error:
        raise ConfigError(f"{key}: its rows cannot be written to {place}: {error.strerror}. Give a path.") from error
    return place
