"""Templates differ in the form of calls and tools that they take; a row has one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import Row
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.rows import Domain
from roll.datasets.tool_calls import tools_in
from roll.errors import ConfigError
from tests.unit.datasets import templates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "actor_train.data_args"
MATH = [Domain("math", ("math",), ())]
CALLING = [
    {"role": "user", "content": "Warm?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
    },
    {"role": "tool", "content": "31"},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "default": None}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
PLAIN = {"type": "object", "properties": {"city": {"type": "string"}}}
CLEAN = {"type": "function", "function": {"name": "weather", "parameters": PLAIN}}


def file_of(path: Path, source: str) -> str:
    (path / "chat.jinja").write_text(source)
    return str(path / "chat.jinja")


@pytest.mark.parametrize("name", ["CALLS", "TEXT_ARGUMENTS", "PLAIN_ARGUMENTS", "NONE_CONTENT"])
def test_a_template_gets_calls_in_the_form_that_it_takes(
    name: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    template = PromptTemplate.load(file_of(tmp_path, getattr(templates, name)), tiny_tokenizer, KEY)
    wanted = 'user:Warm?;assistant:<weather {"city": "Rome"}><|im_end|>tool:31;assistant:'
    assert template.render_messages(CALLING, Row("rows.jsonl", 1, {})) == wanted


def test_arguments_are_a_mapping_and_unnamed_tools_are_not_read(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    template = PromptTemplate.load(file_of(tmp_path, templates.ITEMS), tiny_tokenizer, KEY)
    assert "<weather city=Rome >" in template.render_messages(CALLING, Row("rows.jsonl", 1, {}))
    task = prompt(tmp_path, tiny_tokenizer, {"tools": [TOOL]}, templates.CALLS, tools=None)
    assert task.prompt_text == "user:Warm?;assistant:" and task.tools == ()


def test_a_template_that_takes_no_form_is_told_with_what_it_says_of_the_first(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    source = "{{ raise_exception('no ' + messages[1].tool_calls[0].function.arguments | string) }}"
    template = PromptTemplate.load(file_of(tmp_path, source), tiny_tokenizer, KEY)
    with pytest.raises(ConfigError, match="rows.jsonl:1: .* the template fails on this row: no {'city': 'Rome'}"):
        template.render_messages(CALLING, Row("rows.jsonl", 1, {}))


def prompt(path: Path, tokenizer: "Tokenizer", row: dict[str, Any], source: str, **args: Any) -> Any:
    (path / "rows.jsonl").write_text(json.dumps({"prompt": "Warm?"} | row) + "\n")
    template = args.pop("template", None) or file_of(path, source)
    given = DataArgs(file_name=(str(path / "rows.jsonl"),), template=template, **args)
    return load_tasks(given, KEY, MATH, tokenizer, 2000).tasks[0]


@pytest.mark.parametrize(
    ("tools", "column"),
    [
        ([TOOL], "tools"),
        (TOOL, "tools"),
        (json.dumps([CLEAN]), "tools"),
        ([json.dumps(CLEAN)], "tools"),
        ([{**TOOL, "strict": None, "function": {**TOOL["function"], "description": None}}], "tools"),
        ([{"type": "function", "function": {"name": "weather", "parameters": json.dumps(PLAIN)}}], "tools"),
        ({"tools": [TOOL]}, "extra.tools"),
        ([{"name": "weather", "parameters": PLAIN}], "tools"),  # bare, as xLAM and ToolACE have them
        (json.dumps({"type": "function", "name": "weather", "parameters": PLAIN}), "tools"),
    ],
    ids=["list", "one", "text", "texts", "struct", "schema as a text", "entry", "bare", "bare text"],
)
def test_prompts_of_rlvr_are_written_with_the_tools_of_the_row(
    tools: Any, column: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    task = prompt(tmp_path, tiny_tokenizer, {column.split(".")[0]: tools}, templates.CALLS, tools=column)
    assert task.prompt_text == f"[{json.dumps(CLEAN)}]user:Warm?;assistant:" and task.tools == (CLEAN,)


@pytest.mark.parametrize("empty", [None, [], "", "[]"])
def test_a_row_without_tools_is_asked_without_any(empty: Any, tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    assert prompt(tmp_path, tiny_tokenizer, {"tools": empty}, templates.CALLS).prompt_text == "user:Warm?;assistant:"


@pytest.mark.parametrize("template", ["plain", "chatml", "native"])
def test_a_template_that_writes_no_tools_is_refused_by_row_in_rlvr(
    template: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    said = f"rows.jsonl:1: {KEY}.template: the row offers tools, but the template does not write them.* {KEY}.tools: nu"
    with pytest.raises(ConfigError, match=said):
        prompt(tmp_path, tiny_tokenizer, {"tools": [TOOL]}, "", template=template)


def test_nulls_of_a_tool_that_is_json_text_stay() -> None:
    """`default: null` says something there; in a struct it is a field of another row's tool."""
    found = [tools_in(Row("f", 1, {"tools": tools}), "tools")[0] for tools in (json.dumps([TOOL]), [TOOL])]
    assert [tool["function"]["parameters"] for tool in found] == [SCHEMA, PLAIN]


@pytest.mark.parametrize("tools", [["weather"], 3, "weather", [[TOOL]]])
def test_what_is_no_tool_is_refused_with_its_key(tools: Any, tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl:1: column 'tools' "):
        prompt(tmp_path, tiny_tokenizer, {"tools": tools}, templates.CALLS)


@pytest.mark.parametrize("role", ["developer", "system"])
def test_a_message_that_a_template_does_not_write_is_refused_by_row_in_rlvr(
    role: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    """Qwen2.5 writes nothing of a developer's message, Mistral nothing of a system's without a user's."""
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    asked = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Warm?"}]
    with pytest.raises(ConfigError, match="rows.jsonl:1: .* leaves out the content of message 1"):
        prompt(tmp_path, tiny_tokenizer, {"prompt": asked}, source)
