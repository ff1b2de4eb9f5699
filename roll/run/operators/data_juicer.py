"""Operators of Data-Juicer, run by its own package on rows of one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.configs.sections.operators import DataJuicerArgs
from roll.errors import ConfigError, describe
from roll.run.operators.operators_row import Context, OperatorRow, Verdict
from roll.utils.imports import is_installed, resolve

INSTALL = "pip install py-data-juicer"
_TEXT, _NUMBER = "text", "roll_row"


def missing_package() -> str | None:
    """What is to be installed first, None if nothing is."""
    if is_installed("data_juicer"):
        return None
    return f"operators of Data-Juicer need its package, which is not installed. Install it: {INSTALL}"


def run_op(rows: Sequence[OperatorRow], args: DataJuicerArgs, context: Context) -> list[Verdict]:
    """One operator on a data set whose column `text` is the rows' text. What it leaves out goes, by its name; a text
    that it changes is the column's new value."""
    if (missing := missing_package()) is not None:
        raise ConfigError(f"{context.key}: {missing}")
    texts = [_text(row, args.column, context.key) for row in rows]
    left = _left(texts, args, context)
    verdicts: list[Verdict] = []
    for number, text in enumerate(texts):
        after = left.get(number)
        if after is None:
            verdicts.append(f"left out by {context.op}")
        elif after == text:
            verdicts.append(None)
        elif args.column is None:
            raise ConfigError(f"{context.key}: {context.op} changes texts: set args.column to the column")
        else:
            verdicts.append({args.column: after})
    return verdicts


def _left(texts: Sequence[str], args: DataJuicerArgs, context: Context) -> dict[int, str]:
    """The texts that it leaves, by their numbers."""
    load: Any = resolve("data_juicer.ops:load_ops")
    nested: Any = resolve("data_juicer.core.data:NestedDataset")
    make: Any = resolve("datasets:Dataset.from_list")
    try:
        (op,) = load([{context.op: {"num_proc": 1, **args.op_args}}])
        data = nested(make([{_NUMBER: number, _TEXT: text} for number, text in enumerate(texts)]))
        return {row[_NUMBER]: row[_TEXT] for row in op.run(data)}
    except Exception as error:  # of whatever the operator stands on
        raise ConfigError(f"{context.key}: {context.op} of Data-Juicer failed: {describe(error)}.") from error


def _text(row: OperatorRow, column: str | None, key: str) -> str:
    if column is None:
        return row.part("both")
    value = row.value(column)
    if not isinstance(value, str):
        raise ConfigError(f"{key}.args.column: {row.where}: column {column!r} holds {type(value).__name__}, not a text")
    return value
