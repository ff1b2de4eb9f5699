"""Sources of rows, tokenizers from files and the table of templates."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.datasets.answers.turns import Turns
from roll.datasets.file_tokenizer import file_tokenizer
from roll.datasets.loader import Row
from roll.datasets.mixing import RowSource
from roll.datasets.prompt_template import PromptTemplate
from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer
from roll.types.batch import Rows
from tests.conftest import REPOSITORY
from tests.helpers.chat_traits import TRAITS, Trait, tokenizer_of


def source(count: int = 5, shuffle: bool = True, seed: int = 1) -> RowSource:
    """Rows [0 10], [1 11], ... of which the second token is learnt."""
    ids = [[row, 10 + row] for row in range(count)]
    return RowSource(Rows.of(ids, [[False, True]] * count), seed, shuffle, "x.data_args")


def firsts(rows: Rows) -> list[int]:
    return rows.input_ids[np.cumsum(rows.lengths) - rows.lengths].tolist()


def test_every_row_comes_once_an_epoch_also_after_a_resume() -> None:
    rows = source()
    first, second = firsts(rows.next_rows(5)), firsts(rows.next_rows(5))
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]
    assert first != second
    assert firsts(source(shuffle=False).next_rows(7)) == [0, 1, 2, 3, 4, 0, 1]
    rows, again = source(), source()
    rows.next_rows(3)
    again.load_state_dict(rows.state_dict())
    assert again.epochs == 0.6
    assert np.array_equal(rows.next_rows(6).input_ids, again.next_rows(6).input_ids)
    with pytest.raises(ConfigError, match="x.data_args: the rows are not those of the checkpoint"):
        source(6).load_state_dict(source(5).state_dict())


TEXTS = ["What is 1 + 1?", "  two  spaces\n\nsort: c b a \u00e9"]
CONVERSATION = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXTS[1]}]
ALL = (
    "{{ bos_token }}{% for m in messages %}{% if not m.content %}{% continue %}{% endif %}{% generation %}"
    "{{ m | tojson(indent=1) }}{% endgeneration %}{% endfor %}{{ tools | tojson }}{{ own }}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def test_ids_and_texts_are_those_of_transformers(tiny_model_dir: Path) -> None:
    theirs, ours = load_tokenizer(str(tiny_model_dir)), file_tokenizer(tiny_model_dir, "tiny")
    assert ours is not None
    for adds in (True, False):
        ids = theirs(TEXTS, add_special_tokens=adds)["input_ids"]
        assert ours(TEXTS, add_special_tokens=adds)["input_ids"] == ids
        assert ours(TEXTS[0], add_special_tokens=adds)["input_ids"] == ids[0]
        assert ours.decode(ids[1]) == theirs.decode(ids[1])
    for source, tools in ((None, None), (ALL, [{"type": "function", "function": {"name": "f"}}])):
        keys = {"tools": tools, "chat_template": source, "add_generation_prompt": True, "own": "x"}
        texts = [each.apply_chat_template(CONVERSATION, tokenize=False, **keys) for each in (ours, theirs)]
        assert texts[0] == texts[1]
    assert ours.get_vocab() == theirs.get_vocab() and ours.eos_token_id == theirs.eos_token_id
    assert ours.all_special_ids == theirs.all_special_ids


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
