"""What a chat template writes of calls returns as it was: random arguments, every form."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.proxy.transcript.argument_values import argument_value
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, USER, Call, ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.unit.pipeline.agentic.proxy.test_call_formats import CALLS, HARMONY, SHOWN, TURN

TEMPLATES = {"gpt-oss": HARMONY, **{family: SHOWN + TURN.replace("CALLS", calls) for family, calls in CALLS.items()}}
OF_ONE = ("llama", "gpt-oss")  # forms with one call in an answer
TEXTS = ["", "five", " 漢 'x'\n", '"a"', "</tool_call>", "<think>"]
VALUES: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, st.sampled_from([*TEXTS, "5", "null"])),
    "count": ({"type": "integer"}, st.integers()),
    "share": ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    "is it": ({"type": "boolean"}, st.booleans()),
    "list": ({"type": "array"}, st.lists(st.integers() | st.sampled_from(TEXTS), max_size=2)),
    "$x": ({"type": "object"}, st.dictionaries(st.sampled_from(TEXTS), st.booleans(), max_size=2)),
    "either": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, st.sampled_from(TEXTS)),
    "free": ({}, st.integers() | st.booleans()),
}
ARGUMENTS = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in VALUES.items()})
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {"type": "object", "properties": {key: schema for key, (schema, _) in VALUES.items()}},
        },
    }
    for name in ("open", "peek")
]


@cache
def encoder_of(family: str) -> ChatEncoder:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATES[family]
    return ChatEncoder(tokenizer)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("family", TEMPLATES)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(asked=st.lists(ARGUMENTS, min_size=1, max_size=2), content=st.sampled_from(["", "I look."]))
def test_what_a_template_writes_of_calls_returns(family: str, asked: list[dict[str, Any]], content: str) -> None:
    parser = Parser(encoder_of(family))
    asked = asked[:1] if family in OF_ONE else asked
    calls = tuple(Call(name, json.dumps(arguments)) for name, arguments in zip(("open", "peek"), asked, strict=False))
    user = ChatMessage(USER, "x").for_template()
    before = parser.encoder.render([user], TOOLS)
    whole = parser.encoder.render([user, ChatMessage(ASSISTANT, content, calls=calls).for_template()], TOOLS, False)
    said = whole[len(before) :].removesuffix("<|im_end|>\n").removesuffix("<|call|>")
    parsed = parser.parse(said, TOOLS, "c")
    assert not parsed.is_malformed and [call.name for call in parsed.message.calls] == [call.name for call in calls]
    for call, arguments in zip(parsed.message.calls, asked, strict=True):
        assert same(json.loads(call.arguments), arguments)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5.0", {"type": "integer"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("5", {"type": "string"}, "5"),
        ("5", {"enum": ["5", "6"]}, "5"),
        ("1e3", {"type": ["integer", "null"]}, 1000),
        ("1e3", {"type": ["string", "integer"]}, "1e3"),
        ("5", {"type": ["string", "integer"]}, 5),
        ("5", {"$ref": "#/$defs/Digit"}, "5"),
        ("5", {"const": "5"}, "5"),
        ("5", {"type": "INTEGER"}, 5),
        ("5", {"allOf": [{"$ref": "#/$defs/Digit"}, {"default": "6"}]}, "5"),
        ("None", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ("5", {}, 5),
    ],
)
def test_a_text_is_a_value_of_the_type_that_the_schema_gives_it(text: str, schema: dict[str, Any], value: Any) -> None:
    whole = {"properties": {"a": schema}, "$defs": {"Digit": {"type": "string", "enum": ["5", "6"]}}}
    assert same(argument_value(text, "a", whole), value)
