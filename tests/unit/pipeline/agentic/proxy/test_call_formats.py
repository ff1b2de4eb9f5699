"""Tool calls as families of models write them: what is read from an answer, and that it returns as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, TOOL, USER, ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import Renderer
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.helpers.cases import cases
from tests.helpers.chat_traits import Trait, tokenizer_of

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {"type": "object", "properties": {"box": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("open", "peek")
]
SHOWN = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
TURN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}CALLS{% else %}{{ m.content }}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_EACH = "{{ m.content }}{% for c in m.tool_calls %}ONE{% endfor %}"
_XML = _EACH.replace(
    "ONE",
    "{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments.items() %}"
    "{{ '<parameter=' + k + '>\n' }}VALUE{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}",
)
CALLS = {
    "hermes": _EACH.replace(
        "ONE",
        '{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
        "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}",
    ),
    "qwen3-coder": _XML.replace(
        "VALUE", "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}"
    ),
    "qwen3.5": _XML.replace("VALUE", "{{ v if v is string else v | tojson }}"),
    "glm": _EACH.replace(
        "ONE",
        "{{ '\n<tool_call>' + c.function.name + '\n' }}{% for k, v in c.function.arguments.items() %}"
        "{{ '<arg_key>' + k + '</arg_key>\n<arg_value>' }}{{ v if v is string else v | tojson }}"
        "{{ '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}",
    ),
    "mistral": "{{ m.content + '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}",
    "mistral_args": _EACH.replace(
        "ONE", "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' }}{{ c.function.arguments | tojson }}"
    ),
    "llama": "{% set c = m.tool_calls[0].function %}{{ '{\"name\": \"' + c.name + '\", ' }}"
    "{{ '\"parameters\": ' }}{{ c.arguments | tojson }}{{ '}' }}",
}
SAID: dict[str, list[tuple[str, str, list[tuple[str, dict[str, Any]]]]]] = {
    "glm": [
        (
            "I look\n<tool_call>open\n<arg_key>box</arg_key>\n<arg_value>F</arg_value>\n<arg_key>n</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>",
            "I look",
            [("open", {"box": "F", "n": 3})],
        ),
        ("<tool_call>open\n</tool_call>\n<tool_call>peek</tool_call>", "", [("open", {}), ("peek", {})]),
    ],
    "mistral": [
        (
            '[TOOL_CALLS] [{"name": "open", "arguments": {"box": "F"}}, {"name": "peek", "arguments": {}}]',
            "",
            [("open", {"box": "F"}), ("peek", {})],
        ),
        ('so[TOOL_CALLS][{"name": "open", "arguments": {"n": 3}}]', "so", [("open", {"n": 3})]),
    ],
    "mistral_args": [
        (
            'so[TOOL_CALLS]open[ARGS]{"box": "F"}[TOOL_CALLS]peek[CALL_ID]abc123def[ARGS]{}',
            "so",
            [("open", {"box": "F"}), ("peek", {})],
        ),
    ],
    "llama": [
        ('{"name": "open", "parameters": {"box": "F"}}', "", [("open", {"box": "F"})]),
        ('<|python_tag|>{"name": "open", "parameters": {"n": 3}}', "", [("open", {"n": 3})]),
        ('{"type": "function", "name": "open", "parameters": {"n": 3}}', "", [("open", {"n": 3})]),
        ('{"name": "peek"}', "", [("peek", {})]),
    ],
}
MALFORMED = {
    "glm": ["<tool_call>open\n<arg_key>box</arg_key>\n<arg_value>F", "<tool_call></tool_call>"],
    "mistral": ['[TOOL_CALLS] [{"name": "open", "arguments": {"box"', '[TOOL_CALLS] [{"arguments": {}}]'],
    "mistral_args": ['[TOOL_CALLS]open[ARGS]{"box": "F', '[TOOL_CALLS]open[ARGS]["F"]'],
    "llama": [
        '{"name": "open", "parameters": {"box": ',
        '{"name": "open", "parameters": [3]}',
        '{"name": "open", "n": 3}',
    ],
}


HARMONY = (
    SHOWN + "{% macro think(m) %}{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' }}"
    "{{ m.thinking + '<|end|>' }}{% endif %}{% endmacro %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|start|>functions.' + ns.name + ' to=assistant' }}"
    "{{ '<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}{% elif m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}{{ think(m) }}"
    "{% set ns.name = m.tool_calls[0].function.name %}{{ '<|start|>assistant to=functions.' + ns.name }}"
    "{{ '<|channel|>commentary json<|message|>' }}{{ m.tool_calls[0].function.arguments | tojson }}{{ '<|call|>' }}"
    "{% elif m.role == 'assistant' %}{% if loop.last and not add_generation_prompt %}{{ think(m) }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
).replace("{% for m", "{% set ns = namespace(name='') %}{% for m", 1)
"""As gpt-oss writes a conversation: one call a message, thinking before a call stays, before a final answer it goes."""
_THOUGHT = "<|channel|>analysis<|message|>Look into F.<|end|><|start|>assistant"
_OPEN = '<|channel|>commentary to=functions.open <|constrain|>json<|message|>{"box": "F"}<|call|>'


def harmony_encoder(folder: Path) -> ChatEncoder:
    trait = Trait("gpt-oss", HARMONY, "<|return|>", ("<|return|>", "<|call|>"),
                  ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"))  # fmt: skip
    return ChatEncoder(tokenizer_of(trait, folder))


@pytest.mark.parametrize(
    ("said", "reasoning", "content", "calls"),
    [
        (_THOUGHT + _OPEN, "Look into F.", "", [("open", {"box": "F"})]),
        (' to=functions.peek<|channel|>commentary json<|message|>{"n": 3}<|call|>', "", "", [("peek", {"n": 3})]),
        ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + _OPEN, "I look.", "",
         [("open", {"box": "F"})]),
        (_THOUGHT + "<|channel|>final<|message|>It holds 7.<|return|>", "Look into F.", "It holds 7.", []),
        ("<|channel|>final<|message|>It holds 7.<|return|>", "", "It holds 7.", []),
        ("plain words", "", "plain words", []),
    ],
)  # fmt: skip
def test_channels_of_harmony_are_thinking_content_and_calls(
    tmp_path: Path, said: str, reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    encoder = harmony_encoder(tmp_path)
    parser, ids = Parser(encoder), encoder.encode(said)
    assert parser.takes_tools
    for tools in (TOOLS, []):
        parsed = parser.parse(parser.text(ids), tools, "abcdefgh")
        assert not parsed.is_malformed
        assert (parsed.message.reasoning, parsed.message.content) == (reasoning, content)
        assert [(call.name, json.loads(call.arguments)) for call in parsed.message.calls] == calls


def test_a_conversation_of_harmony_goes_on_behind_a_call_and_behind_a_final_answer(tmp_path: Path) -> None:
    encoder = harmony_encoder(tmp_path)
    parser, renderer = Parser(encoder), Renderer(encoder)
    said = encoder.encode(_THOUGHT + _OPEN)
    messages = [ChatMessage(USER, "box F?"), parser.parse(parser.text(said), TOOLS, "x").message]
    behind = renderer.behind([*messages, ChatMessage(TOOL, "7", call_id="x")], 1, TOOLS, said)
    assert behind is not None
    result = '<|start|>functions.open to=assistant<|channel|>commentary<|message|>"7"<|end|><|start|>assistant'
    assert encoder.show(behind.ids) == result
    for final, is_continued in (("<|channel|>final<|message|>7<|return|>", True),
                                (_THOUGHT + "<|channel|>final<|message|>7<|return|>", False)):  # fmt: skip
        said = encoder.encode(final)
        messages = [ChatMessage(USER, "box F?"), parser.parse(parser.text(said), TOOLS, "x").message]
        behind = renderer.behind([*messages, ChatMessage(USER, "sure?")], 1, TOOLS, said)
        assert (behind is not None) == is_continued, "the template drops thinking before a final answer"
        if behind is not None:
            assert encoder.show(behind.ids) == "<|start|>user<|message|>sure?<|end|><|start|>assistant"


@cases("said")
def test_a_message_of_harmony_that_cannot_be_read_is_text_and_counted(tmp_path: Path, said: str) -> None:
    encoder = harmony_encoder(tmp_path)
    parser = Parser(encoder)
    parsed = parser.parse(parser.text(encoder.encode(said)), TOOLS, "abcdefgh")
    assert parsed.is_malformed and not parsed.message.calls and "<|" not in parsed.message.content


def encoder_of(family: str) -> ChatEncoder:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = SHOWN + TURN.replace("CALLS", CALLS[family])
    return ChatEncoder(tokenizer)


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [(family, *case) for family, cases in SAID.items() for case in cases],
)
def test_calls_are_read_and_the_conversation_goes_on_behind_them(
    family: str, text: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    encoder = encoder_of(family)
    parser, renderer = Parser(encoder), Renderer(encoder)
    assert parser.takes_tools
    parsed = parser.parse(text, TOOLS, "abcdefgh")
    assert not parsed.is_malformed
    assert [(call.name, json.loads(call.arguments)) for call in parsed.message.calls] == calls
    assert parsed.message.content.strip() == content
    messages = [ChatMessage(USER, "box F?"), parsed.message, *(ChatMessage(TOOL, "7", call_id="x") for _ in calls)]
    behind = renderer.behind(messages, 1, TOOLS, encoder.encode(text + "<|im_end|>"))
    assert behind is not None and encoder.show(behind.ids).startswith("\n<|im_start|>tool\n7")


@pytest.mark.parametrize(("family", "text"), [(family, text) for family, texts in MALFORMED.items() for text in texts])
def test_calls_that_cannot_be_read_are_text_and_counted(family: str, text: str) -> None:
    parsed = Parser(encoder_of(family)).parse(text, TOOLS, "abcdefgh")
    assert parsed.is_malformed and not parsed.message.calls and parsed.message.content == text


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(
    "text", ["the box holds 7", '{"answer": 7}', '{"name": "Bob", "age": 3}', "a < b and {x}", "[1, 2]", ""]
)
def test_an_answer_without_calls_is_text(family: str, text: str) -> None:
    parsed = Parser(encoder_of(family)).parse(text, TOOLS, "abcdefgh")
    assert (parsed.is_malformed, parsed.message) == (False, ChatMessage(ASSISTANT, text))
