"""What an operator sees, and what it may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.configs.sections.operators import Part
from roll.datasets.loader import Row


@dataclass(frozen=True)
class Texts:
    """What a row asks, and how it is answered: once, twice in a pair, not at all in RLVR."""

    prompt: str
    responses: tuple[str, ...] = ()


ReadTexts = Callable[[Row, DataArgs, str], Texts]
"""How this kind of run reads a row of the data_args at a YAML path. Raises ConfigError for one that it cannot read."""


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
        """The same one by one."""
        prompt = [] if part == "response" else [self.prompt]
        return [*prompt, *([] if part == "prompt" else self.responses)]

    def changed(self, columns: Mapping[str, Any]) -> OperatorRow:
        """The row with these columns in place of its own."""
        row = replace(self._row, values={**self._row.values, **columns})
        return OperatorRow(row, self._id_of, self._read)

    @property
    def row(self) -> Row:
        """The row as the run reads it further on."""
        return self._row


Verdict = bool | str | None | Mapping[str, Any]
"""Of one row. True, None: it stays. A mapping: it stays, with these columns in place of its own. False, or a text that
says why: it goes."""


@dataclass(frozen=True)
class Context:
    """What operators may ask beside the rows. `key`: the YAML path of the operator, for messages. `op`: what its name
    says behind a colon. `count_tokens`: of texts, without a template. `evaluation`: the prompts of the other data_args
    of the run, by their YAML path."""

    key: str
    op: str
    count_tokens: Callable[[Sequence[str]], list[int]]
    evaluation: Callable[[], Mapping[str, Sequence[str]]]
