"""Form of an answer where a request demands one, as a structural tag that engines follow by xgrammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.errors import EnvError
from roll.pipeline.agentic.proxy.transcript.harmony import HARMONY
from roll.pipeline.agentic.proxy.transcript.message import ChatCall, Tool
from roll.pipeline.agentic.proxy.transcript.parse import HERMES, LLAMA, QWEN_XML, Parser

_MOST_CHARACTERS, _MOST_LEVELS = 32_768, 64
"""Limits of a structure, with its schemas. Engines read it before they go on with other answers: 120 kB of alternatives
take seconds, 300 levels ten, and 20,000 properties longer than an engine may be silent."""
_NAME = re.compile(r"[^\s\"\\<>]+")  # of a tool, as every form can write it
_SPACES = 1  # of JSON in a row: a policy that has nothing to say writes them until its answer is cut
_JSON: Mapping[str, Any] = {"type": "json_schema", "max_whitespace_cnt": _SPACES}


class GuideRefused(EnvError):
    """No engine can be led to what the request demands."""


@dataclass(frozen=True)
class _Form:
    """How a call is written around its arguments; NAME stands for the tool's name."""

    begin: str
    end: str
    content: Mapping[str, Any]
    separator: str = ""


_FORMS: tuple[tuple[Mapping[str, Any], _Form], ...] = (
    (HERMES, _Form('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", _JSON, "\n")),
    (QWEN_XML, _Form("<tool_call>\n<function=NAME>\n", "\n</function>\n</tool_call>",
                     {"type": "json_schema", "style": "qwen_xml"}, "\n")),
    (LLAMA, _Form('{"name": "NAME", "parameters": ', "}", _JSON)),
)  # fmt: skip


def structure_of(call: ChatCall, parser: Parser) -> str | None:
    """The structural tag of an answer, None where it is free. Raises GuideRefused."""
    if not call.is_guided:
        return None
    if parser.template is HARMONY:
        raise GuideRefused("response_format and tool_choice: responses of gpt-oss begin with special tokens, which no "
                           "structure holds. Use auto, and text.")  # fmt: skip
    opening = parser.encoder.answer_opening
    whole = {**_JSON, "json_schema": dict(call.schema)} if call.schema is not None else _calls(call, parser.template)
    if "<think>" in opening and "</think>" not in opening:  # the answer begins amid thinking, which has no room
        whole = {"type": "sequence", "elements": [{"type": "const_string", "value": "</think>\n\n"}, whole]}
    structure = json.dumps({"type": "structural_tag", "format": whole})
    if len(structure) > _MOST_CHARACTERS or _levels(whole) > _MOST_LEVELS:
        raise GuideRefused(
            f"response_format and tool_choice: a schema has {len(structure)} characters on {_levels(whole)} levels, and"
            f" {_MOST_CHARACTERS} on {_MOST_LEVELS} are supported. Shorten them, or ask for a json_object."
        )
    return structure


def _levels(value: Any) -> int:
    """How deep a JSON value is nested: 0 for a number."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_levels, parts), default=0)


def _calls(call: ChatCall, template: Mapping[str, Any] | None) -> dict[str, Any]:
    form = next((form for known, form in _FORMS if known is template), None)
    if form is None:
        raise GuideRefused(
            "tool_choice: only auto and none work with this model's form of calls: others are led for the forms of "
            "Hermes (Qwen2.5, Qwen3), Qwen3.5 and Llama-3.1."
        )
    tags = [_call(tool, form) for tool in call.tools if tool["function"]["name"] in call.must_call]
    whole = {"type": "tags_with_separator", "tags": tags, "separator": form.separator, "at_least_one": True}
    return whole | {"stop_after_first": not form.separator}


def _call(tool: Tool, form: _Form) -> dict[str, Any]:
    function = tool["function"]
    if not _NAME.fullmatch(function["name"]):
        raise GuideRefused(f"tool_choice: no call can be led to {function['name']!r}. Use letters, digits, _ and -.")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    content = {**form.content, "json_schema": schema}
    return {
        "type": "tag",
        "begin": form.begin.replace("NAME", function["name"]),
        "content": content,
        "end": form.end,
    }
