"""The tasks of episodes in sessions: rows of a file, or of an object of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from roll.errors import EnvError, describe
from roll.utils.imports import resolve


class Tasks:
    """`source`: a file of JSON lines; or package.module:name of what has a length and items, or is called without
    arguments for such. None: tasks hold nothing but their seed."""

    def __init__(self, source: str | None):
        self._source = source

    def of(self, seed: int) -> dict[str, Any]:
        """Row `seed` modulo their number. Raises EnvError if there is none."""
        if self._source is None:
            return {}
        number = seed % len(self._rows)
        try:
            row = self._rows[number]
        except Exception as error:
            raise EnvError(f"tasks: row {number} of {self._source} cannot be read: {describe(error)}") from None
        if not isinstance(row, Mapping):
            raise EnvError(f"tasks: {self._source} holds {type(row).__name__}, not mappings")
        return {str(name): self._plain(number, str(name), value) for name, value in row.items()}

    def _plain(self, number: int, column: str, value: Any) -> Any:
        """The value as a program will read it from JSON. Numbers and arrays of numpy and torch become Python's."""
        try:
            return json.loads(json.dumps(value, default=_of_library))
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvError(
                f"tasks: column {column!r} of row {number} of {self._source} cannot be written as JSON, which programs "
                f"read: {describe(error)}. Turn it into texts, numbers, lists or mappings, or leave the column out."
            ) from None

    @cached_property
    def _rows(self) -> Any:
        assert self._source is not None
        try:
            rows = _of_file(Path(self._source)) if self._source.endswith((".jsonl", ".json")) else _of(self._source)
            count = len(rows)
        except Exception as error:
            raise EnvError(f"tasks: {self._source} cannot be read: {describe(error)}") from None
        if not count:
            raise EnvError(f"tasks: {self._source} is empty")
        return rows


def _of(path: str) -> Any:
    program: Any = resolve(path)
    return program() if callable(program) else program


def _of_library(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {type(value).__name__}")


def _of_file(file: Path) -> list[Any]:
    text = file.expanduser().read_text(encoding="utf-8")
    if file.suffix == ".json":
        return list(json.loads(text))
    return [json.loads(line) for line in text.splitlines() if line.strip()]
