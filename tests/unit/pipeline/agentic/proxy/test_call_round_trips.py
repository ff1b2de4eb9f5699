"""What a chat template writes of calls returns as it was, or is malformed: random arguments and schemas, every form."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.proxy.transcript.argument_values import argument_value
from roll.pipeline.agentic.proxy.transcript.forms import GLM, QWEN_XML
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, USER, Call, ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.proxy.test_call_formats import CALLS, HARMONY, SHOWN, TURN

TEMPLATES = {"gpt-oss": HARMONY, **{family: SHOWN + TURN.replace("CALLS", calls) for family, calls in CALLS.items()}}
OF_ONE = ("llama", "gpt-oss")  # forms with one call in an answer
TAGGED = (GLM, QWEN_XML)  # forms whose values are not in JSON
MARKS = ["<parameter=b>", "</parameter>", "\n</parameter>\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
"""Of the tagged forms: a value that holds one of its own is malformed."""
PIECES = [*MARKS, *"\n aé漢😀'\"\\{}[]<>:,5", "  ", "\\n", "5.0", "null", "None", "true", "True", "<tool_call>",
          "</tool_call>", "<function=open>", "</function>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>",
          "<|call|>", "<|start|>", "<think>", "</think>", "<|im_end|>", '{"name": "open"}']  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=8).map("".join)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.sampled_from(["box", "n", "a b", "ключ", "$x"])
Pair = tuple[dict[str, Any], Any]
"""A schema and a value that it describes."""


def of(schema: dict[str, Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return values.map(lambda value: (schema, value))


PLAIN = st.one_of(
    of({"type": "string"}, TEXTS),
    of({"type": "integer"}, st.integers()),
    of({"type": "number"}, NUMBERS),
    of({"type": "boolean"}, st.booleans()),
    of({"enum": [3, 7.5, None, True]}, st.sampled_from([3, 7.5, None, True])),
    of({"enum": ["3", "None", " x\n"]}, st.sampled_from(["3", "None", " x\n"])),
    of({"const": 4}, st.just(4)),
    of({"type": ["integer", "null"]}, st.none() | st.integers()),
    of({}, st.recursive(NUMBERS | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    lists = inner.flatmap(lambda pair: of({"type": "array", "items": pair[0]}, st.lists(st.just(pair[1]), max_size=2)))
    objects = st.dictionaries(NAMES, inner, max_size=3).map(
        lambda of_name: (
            {"type": "object", "properties": {name: pair[0] for name, pair in of_name.items()}},
            {name: pair[1] for name, pair in of_name.items()},
        )
    )
    wrapped = st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), inner, st.booleans()).map(
        lambda all: (
            {all[0]: [all[1][0], *([{"type": "null"}] if all[2] and all[0] != "allOf" else [])]},
            all[1][1],
        )
    )
    return lists | objects | wrapped


PAIRS = st.recursive(PLAIN, nested, max_leaves=4)


@st.composite
def tools_and_arguments(draw: st.DrawFn) -> Pair:
    """Parameters of a tool, of which some are references, and arguments."""
    found = draw(st.dictionaries(NAMES, st.tuples(PAIRS, st.booleans()), max_size=3))
    parts = {name: pair[0] for name, (pair, _) in found.items()}
    shown = {name: {"$ref": f"#/$defs/{name}"} if by_name else parts[name] for name, (_, by_name) in found.items()}
    parameters: dict[str, Any] = {"type": "object", "properties": shown, "$defs": parts}
    if draw(st.booleans()):
        parameters = {"$ref": "#/$defs/of call", "$defs": {**parts, "of call": {"properties": shown}}}
    return parameters, {name: pair[1] for name, (pair, _) in found.items()}


@cache
def encoder_of(family: str) -> ChatEncoder:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATES[family]
    return ChatEncoder(tokenizer)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("family", TEMPLATES)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(asked=st.lists(tools_and_arguments(), min_size=1, max_size=2), content=st.sampled_from(["", "I look."]))
def test_what_a_template_writes_of_calls_returns_or_is_malformed(family: str, asked: list[Pair], content: str) -> None:
    parser = Parser(encoder_of(family))
    asked = asked[:1] if family in OF_ONE else asked
    names = ["open", "peek"]
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}
        for name, (parameters, _) in zip(names, asked, strict=False)
    ]
    calls = tuple(Call(name, json.dumps(pair[1])) for name, pair in zip(names, asked, strict=False))
    user = ChatMessage(USER, "x").for_template()
    before = parser.encoder.render([user], tools)
    whole = parser.encoder.render([user, ChatMessage(ASSISTANT, content, calls=calls).for_template()], tools, False)
    assert whole.startswith(before)
    said = whole[len(before) :].removesuffix("<|im_end|>\n").removesuffix("<|call|>")
    parsed = parser.parse(said, tools, "c")
    if parsed.is_malformed:
        assert parser.form in TAGGED and any(mark.strip() in str(asked) for mark in MARKS)
        return
    assert [call.name for call in parsed.message.calls] == [call.name for call in calls]
    for call, (_, arguments) in zip(parsed.message.calls, asked, strict=True):
        found = json.loads(call.arguments)
        assert list(found) == list(arguments)
        for name, value in arguments.items():
            assume(value not in ("null", "None") or parser.form not in TAGGED)  # a text or nothing: both are written so
            assert same(found[name], value), (name, value, found[name])


EITHER = {"anyOf": [{"type": "string"}, {"type": ["integer", "null", "array"]}]}


@cases("text, schema, value")
def test_a_text_is_a_value_of_the_type_that_the_schema_gives_it(text: str, schema: dict[str, Any], value: Any) -> None:
    assert same(argument_value(text, "a", {"properties": {"a": schema}}), value)
