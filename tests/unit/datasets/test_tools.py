"""Conversations with tools: what the template writes of them, and what is learnt."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns, load_conversations, look_at_rows
from roll.errors import ConfigError
from roll.types.batch import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "sft_train.data_args"
SPANS = re.compile(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", re.DOTALL)
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": "sort", "parameters": {"properties": {"digits": {"type": "string"}}}}}
]


def call(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "sort", "arguments": arguments}}],
    }


MESSAGES = [
    {"role": "user", "content": "31?"},
    call({"digits": "31"}),
    {"role": "tool", "content": "13"},
    {"role": "assistant", "content": "It is 13."},
    {"role": "user", "content": "And 42?"},
    call({"digits": "42"}),
    {"role": "tool", "content": "24"},
    {"role": "assistant", "content": "It is 24."},
]


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "tools.jinja").write_text(TEMPLATE)
    return str(tmp_path / "tools.jinja")


def load(
    path: Path, tokenizer: "Tokenizer", row: dict[str, Any], template: str, *, longest: int = 1000, **more: Any
) -> Rows:
    (path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    args = DataArgs(file_name=(str(path / "rows.jsonl"),), template=template, **more.pop("args", {}))
    columns = Columns(
        **{"prompt": "prompt", "query": None, "response": "answer", "system": None, "tools": "tools"} | more
    )
    return load_conversations(args, KEY, columns, tokenizer, longest)


def by_hand(tokenizer: "Tokenizer", row: dict[str, Any], last_only: bool) -> tuple[list[int], list[bool]]:
    """The template's text of the whole conversation, tokenized as one; learnt are the tokens between the assistant's
    header and its end-of-turn token, found by their places in the text."""
    text = str(
        tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=TEMPLATE, tokenize=False)
    )
    spans = [found.span() for found in SPANS.finditer(text)][-1 if last_only else 0 :]
    text = text[: spans[-1][1]]
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, mask = [], []
    for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
        ids.append(token)
        mask.append(any(first <= start and end <= behind for first, behind in spans))
    return ids, mask


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize("train_on", ["all", "last"])
def test_masks_are_those_of_the_assistants_spans_in_the_templates_text(
    train_on: str, tools: Any, tmp_path: Path, tiny_tokenizer: "Tokenizer", template: str
) -> None:
    row = {"messages": MESSAGES} | ({"tools": tools} if tools else {})
    rows = load(tmp_path, tiny_tokenizer, row, template, train_on=train_on)
    ids, mask = by_hand(tiny_tokenizer, row, train_on == "last")
    behind = len(rows.input_ids) - len(ids)  # the line break behind the last turn, which nobody learns
    assert rows.input_ids.tolist()[: len(ids)] == ids and tiny_tokenizer.decode(rows.input_ids[len(ids) :]) == "\n"
    assert rows.response_mask.tolist() == mask + [False] * behind
    learnt = tiny_tokenizer.decode(rows.input_ids[np.array(rows.response_mask)])
    calls = [f"<tool_call>sort digits={digits}</tool_call><|im_end|>" for digits in (31, 42)]
    every = [calls[0], "It is 13.<|im_end|>", calls[1], "It is 24.<|im_end|>"]
    assert learnt == "".join(every if train_on == "all" else every[-1:])


@pytest.mark.parametrize("name", ["chatml", "native", "plain", "base"])
def test_a_template_that_writes_no_tools_refuses_rows_that_have_some(
    name: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    row = {"prompt": "31?", "answer": "13", "tools": TOOLS}
    with pytest.raises(ConfigError, match=f"rows.jsonl:1: {KEY}.template: the row offers tools, but the template"):
        load(tmp_path, tiny_tokenizer, row, name)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": MESSAGES, "tools": "sort"}, r"column 'tools' is a text but not JSON"),
        ({"messages": MESSAGES, "tools": ["sort"]}, r"column 'tools' \(tools_key\) must be a list of tools"),
        (
            {"messages": [MESSAGES[0], call("digits=31")]},
            r"column 'messages': message 2 \(assistant\): arguments of a tool call are not JSON",
        ),
        (
            {"messages": [MESSAGES[0], call({}) | {"tool_calls": 1}]},
            ".*tool_calls must be a list of calls, each a mapping",
        ),
        ({"messages": [MESSAGES[0], call({}) | {"tool_calls": "sort"}]}, ".*tool_calls must be a list of calls, each"),
    ],
)
def test_tools_and_calls_that_cannot_be_read_are_named_before_the_run(
    row: dict[str, Any], message: str, tmp_path: Path, tiny_tokenizer: "Tokenizer", template: str
) -> None:
    with pytest.raises(ConfigError, match=f"rows.jsonl:1: {message}"):
        load(tmp_path, tiny_tokenizer, row, template)
    args = DataArgs(file_name=(str(tmp_path / "rows.jsonl"),))
    (said,) = look_at_rows(args, KEY, Columns("prompt", None, "answer", None, "tools"))
    assert re.search(message, said)


@pytest.mark.parametrize("content", ["", "I ask."])
def test_a_template_that_writes_no_calls_refuses_rows_that_make_some(
    content: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    """It would teach to end the turn instead."""
    row = {"messages": [MESSAGES[0], call({"digits": "31"}) | {"content": content}]}
    message = f"rows.jsonl:1: {KEY}.template: the template leaves out the calls of message 2"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, tiny_tokenizer, row, "chatml")
