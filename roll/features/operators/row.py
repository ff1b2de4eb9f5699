"""Operators one after the other, and how many rows each took and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from roll.configs.sections.data import OperatorConfig
from roll.configs.sections.operators import Part, data_juicer_op, operator_of
from roll.datasets.chosen_rows import Texts
from roll.datasets.loader import Row
from roll.errors import ConfigError, describe
from roll.utils.imports import line_of, resolve
from roll.utils.text import show, table

# What an operator sees, and what it may say.


class OperatorRow:
    """A row as operators see it. `values`: its columns, as the operators before have left them. `id_of`: its id, or
    its file and line."""

    def __init__(self, row: Row, id_of: Callable[[Row], str], read: Callable[[Row], Texts]):
        self._row, self._id_of, self._read = row, id_of, read

    @property
    def id(self) -> str:
        return self._id_of(self._row)

    @property
    def values(self) -> Mapping[str, Any]:
        return self._row.values

    @property
    def where(self) -> str:
        """Its file and line, for messages."""
        return self._row.where

    def value(self, column: str) -> Any:
        """None where nothing is; column.name where a column holds mappings."""
        return self._row.value(column)

    @cached_property
    def texts(self) -> Texts:
        return self._read(self._row)

    @property
    def prompt(self) -> str:
        return self.texts.prompt

    @property
    def responses(self) -> tuple[str, ...]:
        return self.texts.responses

    def part(self, part: Part) -> str:
        """The text of this part, for comparisons; answers follow the prompt on lines of their own."""
        return "\n".join(self.parts(part))

    def parts(self, part: Part) -> list[str]:
        """Texts of this part, the prompt first, each answer by itself."""
        prompt = [] if part == "response" else [self.prompt]
        return [*prompt, *([] if part == "prompt" else self.responses)]

    def pictures(self, part: Part) -> tuple[str, ...]:
        """The places of the pictures that this part shows."""
        return () if part == "response" else self.texts.pictures

    def changed(self, columns: Mapping[str, Any]) -> OperatorRow:
        """The row with these columns in place of its own."""
        row = replace(self._row, values={**self._row.values, **columns})
        return OperatorRow(row, self._id_of, self._read)

    @property
    def row(self) -> Row:
        """The row as the run reads it further on."""
        return self._row


Verdict = bool | str | None | Mapping[str, Any]
"""Verdict on one row. True, None: it stays. A mapping: it stays, with these columns in place of its own. False, or a
text that says why: it goes."""


@dataclass(frozen=True)
class Context:
    """Context that operators may use beside the rows. `key`: the YAML path of the operator, for messages. `op`: what
    its name says behind a colon. `count_tokens`: of texts, without a template. `evaluation`: the rows of the other
    data_args of the run, by their YAML path."""

    key: str
    op: str
    count_tokens: Callable[[Sequence[str]], list[int]]
    evaluation: Callable[[], Mapping[str, Sequence[Texts]]]


MOST_REASONS = 4


@dataclass(frozen=True)
class Taken:
    """Effect of one operator: of `rows` that reached it, how many it `changed`, and how many it removed for which
    reason, the most frequent first."""

    name: str
    rows: int
    changed: int
    reasons: tuple[tuple[str, int], ...]

    @property
    def taken(self) -> int:
        return sum(count for _, count in self.reasons)

    @property
    def why(self) -> str:
        """Example: "12 the same as an earlier row, 3 near to an earlier row"."""
        parts = [f"{count} {reason}" for reason, count in self.reasons[:MOST_REASONS]]
        rest = sum(count for _, count in self.reasons[MOST_REASONS:])
        parts += [f"{rest} for other reasons"] if rest else []
        return ", ".join([*parts, *([f"{self.changed} changed"] if self.changed else [])])


@dataclass(frozen=True)
class Chosen:
    """Result of a chain: rows by their number among all, with the columns that it changed, and the effect of each
    operator."""

    rows: tuple[int, ...]
    changes: Mapping[int, Mapping[str, Any]]
    steps: tuple[Taken, ...]

    def lines(self) -> list[str]:
        """A table for people."""
        rows = [("operator", "rows", "taken", "why")]
        rows += [(step.name, str(step.rows), str(step.taken), step.why) for step in self.steps]
        return [*table(rows), f"{len(self.rows)} of {self.steps[0].rows} rows remain"]


def run_chain(
    rows: Sequence[OperatorRow], chain: Sequence[OperatorConfig], key: str, context: Callable[[str, str], Context]
) -> Chosen:
    """`key`: the YAML path of the data_args; `context` makes that of an operator from its path and what its name says
    behind the colon. Raises ConfigError for an operator that fails, and for one that leaves nothing."""
    rest = list(enumerate(rows))
    changes: dict[int, dict[str, Any]] = {}
    steps: list[Taken] = []
    for place, entry in enumerate(chain):
        at = f"{key}.operators[{place}]"
        verdicts = _verdicts([row for _, row in rest], entry, context(at, data_juicer_op(entry.name) or ""))
        reasons: Counter[str] = Counter()
        num_changed, after = 0, []
        for (number, row), verdict in zip(rest, verdicts, strict=True):
            if isinstance(verdict, Mapping):
                columns = _plain(verdict, f"{at}: {entry.name}", row)
                changes[number] = changes.get(number, {}) | columns
                row, num_changed = row.changed(columns), num_changed + 1
            elif verdict is False or isinstance(verdict, str):
                reasons[verdict or "without a reason"] += 1
                changes.pop(number, None)
                continue
            after.append((number, row))
        steps.append(Taken(entry.name, len(rest), num_changed, tuple(reasons.most_common())))
        if not after:
            raise ConfigError(
                f"{at}: {entry.name} leaves none of {len(rest)} rows ({steps[-1].why}). Change its args, or take it out"
            )
        rest = after
    return Chosen(tuple(number for number, _ in rest), changes, tuple(steps))


def _verdicts(rows: Sequence[OperatorRow], entry: OperatorConfig, context: Context) -> list[Verdict]:
    known = operator_of(entry.name)
    if known is not None:
        function = cast("Callable[..., list[Verdict]]", resolve(known.function))
        return function(rows, known.args.model_validate(entry.args), context)
    try:
        function = cast("Callable[..., Any]", resolve(entry.name))
    except ImportError as error:
        raise ConfigError(f"{context.key}: {error}") from error
    try:
        verdicts = list(function(list(rows), **entry.args))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{context.key}: {entry.name} raised {describe(error)}{line_of(error, __file__)}.") from error
    return list(_checked(verdicts, rows, f"{context.key}: {entry.name}"))


def _checked(verdicts: Sequence[Any], rows: Sequence[OperatorRow], owner: str) -> Iterator[Verdict]:
    if len(verdicts) != len(rows):
        raise ConfigError(f"{owner} gave {len(verdicts)} verdicts for {len(rows)} rows. It must give one for each.")
    for verdict, row in zip(verdicts, rows, strict=True):
        if verdict is not None and not isinstance(verdict, bool | str | Mapping):
            raise ConfigError(
                f"{owner} gave {show(verdict)} for {row.where}. Give True, False, a text that says why a row goes, or "
                "a mapping of changed columns."
            )
        yield (verdict or False) if isinstance(verdict, str) else verdict


def _plain(columns: Mapping[str, Any], owner: str, row: OperatorRow) -> dict[str, Any]:
    """Columns as the next run will read them. Raises ConfigError for values that JSON does not hold."""
    try:
        return json.loads(json.dumps(dict(columns), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{owner}: its columns for {row.where} are no JSON values: {error}.") from error


def apply(chosen: Chosen, rows: Sequence[OperatorRow]) -> Iterator[OperatorRow]:
    """The rows that were chosen, changed as they were."""
    for number in chosen.rows:
        yield rows[number].changed(chosen.changes[number]) if number in chosen.changes else rows[number]
