"""Rows of a Python program as the file that a run reads."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roll.errors import ConfigError, describe
from roll.utils.files import write_whole
from roll.utils.text import show

FOLDER = "~/.cache/roll/rows"
Data = str | os.PathLike[str] | Iterable[Any]
_FORMS = 'Give a path, a list of rows such as {"prompt": ..., "ground_truth": ...}, or one split of a datasets.Dataset.'


def file_names(key: str, data: Data) -> str | list[str]:
    """Return `file_name` for these data: paths as they are; rows are written to a file of ~/.cache/roll/rows named by a
    hash of its content, so that equal rows share a file. Raises ConfigError for data without rows."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if hasattr(data, "iterrows") and hasattr(data, "to_dict"):  # a pandas.DataFrame
        data = data.to_dict(orient="records")  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(data, Mapping | bytes) or not isinstance(data, Iterable):
        raise ConfigError(f"{key}: {show(data)} is of type {type(data).__name__}. {_FORMS}")
    rows = list(data)
    if not rows:
        raise ConfigError(f"{key} is empty: it has no rows to learn from. {_FORMS}")
    if all(isinstance(row, str | os.PathLike) for row in rows):
        return [os.fspath(row) for row in rows]
    return str(_written(key, "".join(_line(key, number, row) for number, row in enumerate(rows, 1))))


def _line(key: str, number: int, row: Any) -> str:
    if not isinstance(row, Mapping) or not row:
        raise ConfigError(f"{key}: row {number} is {show(row)}, not a mapping of columns. {_FORMS}")
    try:
        return json.dumps(dict(row), default=_plain, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: row {number} cannot be written as JSON: {describe(error)}.") from None


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy, dates, paths."""
    for method in ("tolist", "isoformat", "__fspath__"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    raise TypeError(f"it holds a value of type {type(value).__name__}. Make it a text")


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
