"""Rows and contexts for tests of operators."""

from collections.abc import Mapping, Sequence
from typing import Any

from roll.datasets.chosen_rows import Texts
from roll.datasets.loader import Row
from roll.features.operators.row import Context, OperatorRow


def read(row: Row) -> Texts:
    return Texts(str(row.values["prompt"]), tuple(row.values.get("answers", ())))


def id_of(row: Row) -> str:
    return str(row.values.get("id", f"r{row.place}"))


def rows(*values: str | Mapping[str, Any]) -> list[OperatorRow]:
    """A text alone is a prompt. Their ids are r0, r1, ..."""
    made = [{"prompt": value} if isinstance(value, str) else value for value in values]
    return [OperatorRow(Row("f.jsonl", place, value), id_of, read) for place, value in enumerate(made)]


def context(evaluation: Mapping[str, Sequence[str]] | None = None, op: str = "") -> Context:
    """Tokens are the words between spaces."""
    prompts = {name: [Texts(prompt) for prompt in of_name] for name, of_name in (evaluation or {}).items()}
    return Context("x.operators[0]", op, lambda texts: [len(text.split()) for text in texts], lambda: prompts)
