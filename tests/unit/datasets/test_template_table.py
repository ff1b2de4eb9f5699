"""docs/templates.md: what becomes of conversations, by what their template does."""

import re
from pathlib import Path
from typing import Any

import pytest

from roll.datasets.answers.turns import Turns
from roll.datasets.loader import Row
from roll.datasets.templates import PromptTemplate
from roll.errors import ConfigError
from tests.conftest import REPOSITORY
from tests.helpers.chat_traits import TRAITS, Trait, tokenizer_of

PAGE = REPOSITORY / "docs" / "templates.md"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
_CALL = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
_HI: dict[str, Any] = {"role": "user", "content": "hi"}
_SINGLE: list[dict[str, Any]] = [_HI, {"role": "assistant", "content": "yo"}]
_THOUGHT: list[dict[str, Any]] = [_HI, {"role": "assistant", "content": "yo", "reasoning_content": "Hm."}]
_WET: list[dict[str, Any]] = [
    _HI,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "dry"},
    {"role": "assistant", "content": "No."},
]
COLUMNS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "single": (_SINGLE, ()),
    "multi-turn": ([*_SINGLE, {"role": "user", "content": "again"}, {"role": "assistant", "content": "sure"}], ()),
    "tools": (_WET, TOOLS),
    "thinking": (_THOUGHT, ()),
    "multi-turn thinking": ([*_THOUGHT, *_THOUGHT], ()),
}
REASONS = {
    "the row offers tools": "the template writes no tools",
    "leaves out the reasoning_content": "it writes no reasoning",
    "leaves out the content": "it writes no content beside calls",
    "no engine stops": "nothing ends an answer",
    "the template fails": "the template refuses it",
}


def cell(trait: Trait, folder: Path, messages: list[dict[str, Any]], tools: Any) -> str:
    turns = Turns(PromptTemplate.load("native", tokenizer_of(trait, folder), "template"), "all")
    try:
        rows = turns.rows(messages, Row("", 0, {}), tools=tools)
    except ConfigError as error:
        return f"refused: {next(said for part, said in REASONS.items() if part in str(error))}"
    answers = sum(message["role"] == "assistant" for message in messages)
    return "works" if len(rows) == 1 else "one row per answer" if len(rows) == answers else f"{len(rows)} rows"


def table(folder: Path) -> str:
    lines = [f"| the template | as of | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    for name, trait in TRAITS.items():
        cells = (cell(trait, folder / name.replace(" ", "_"), *row) for row in COLUMNS.values())
        lines.append(f"| {name} | {trait.like} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_templates_is_what_they_do(tmp_path: Path) -> None:
    """Where it fails, the table that it shows is the one that the page needs."""
    found = re.search(r"^\| the template .*?(?=\n\n)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    expected = table(tmp_path)
    assert found is not None and found[0] == expected, f"docs/templates.md needs:\n{expected}"


@pytest.mark.parametrize("name", TRAITS)
def test_tools_are_learnt_or_refused_for_what_is_missing(name: str, tmp_path: Path) -> None:
    assert re.match("works|one row per answer|refused: ", cell(TRAITS[name], tmp_path, *COLUMNS["tools"]))
