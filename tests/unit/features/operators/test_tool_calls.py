"""Operators see the calls of tools in a conversation."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.configs.sections.operators import DeduplicateArgs, LengthArgs
from roll.datasets.conversations import Columns
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from roll.features.operators.bounds import length
from roll.features.operators.row import OperatorRow
from roll.features.operators.texts import SAME, deduplicate
from tests.unit.features.operators.rows import context

ASKED = {"role": "user", "content": "Book it"}


def called(town: str, id: str = "a", as_text: bool = False) -> dict[str, Any]:
    arguments = {"to": town}
    function = {"name": "book", "arguments": json.dumps(arguments) if as_text else arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}


def rows(*conversations: list[Mapping[str, Any]]) -> list[OperatorRow]:
    read = Columns("instruction", None, "output", None).texts
    made = [Row("f.jsonl", place, {"messages": messages}) for place, messages in enumerate(conversations)]
    return [OperatorRow(row, lambda row: str(row.place), lambda row: read(row, DataArgs(), "k")) for row in made]


@pytest.mark.parametrize("end", [[], [{"role": "tool", "content": "ok"}, {"role": "assistant", "content": "Done."}]])
def test_conversations_with_other_calls_are_not_the_same(end: list[Mapping[str, Any]]) -> None:
    """The id of a call and how its arguments are written make no difference."""
    calls = called("Rome"), called("Oslo"), called("Rome", id="b"), called("Oslo", as_text=True)
    made = rows(*([ASKED, call, *end] for call in calls))
    assert deduplicate(made, DeduplicateArgs(), context()) == [None, None, SAME, SAME]


def test_calls_are_part_of_prompts_and_answers() -> None:
    (row,) = rows([ASKED, called("Rome")])
    assert row.responses == ('book({"to": "Rome"})',)
    assert length([row], LengthArgs(part="response", min=1), context()) == [None]
    messages = [ASKED, called("Rome"), {"role": "tool", "content": "ok"}]
    reader = RowReader(DataArgs(messages="messages"), "k", [Domain("math", ("math",), required=())])
    found = reader.read(Row("f.jsonl", 0, {"messages": messages})).question
    assert found == 'user: Book it\n\nassistant: book({"to": "Rome"})\n\ntool: ok'
