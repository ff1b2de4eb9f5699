"""Form of an answer where a request demands one, as a structural tag that engines follow by xgrammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from roll.errors import EnvError
from roll.pipeline.agentic.proxy.transcript.forms import HARMONY, JSON, Guide
from roll.pipeline.agentic.proxy.transcript.message import ChatCall, Tool
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.schema_ends import endless_part

_MOST_CHARACTERS, _MOST_LEVELS = 32_768, 64
"""Limits of a structure, with its schemas. Engines read it before they go on with other answers: 120 kB of alternatives
take seconds, 300 levels ten, and 20,000 properties longer than an engine may be silent."""
_NAME = re.compile(r"[^\s\"\\<>]+")  # of a tool, as every form can write it


class GuideRefused(EnvError):
    """No engine can be led to what the request demands."""


_FINAL = "<|channel|>final<|message|>"  # of harmony, before an answer that is no call


def structure_of(call: ChatCall, parser: Parser) -> str | None:
    """The structural tag of an answer, None where it is free. Raises GuideRefused."""
    if not call.is_guided:
        return None
    opening = parser.encoder.answer_opening
    whole = _calls(call, parser) if call.schema is None else _json(call.schema, parser)
    if "<think>" in opening and "</think>" not in opening:  # the answer begins amid thinking, which has no room
        whole = _sequence([_text("</think>\n\n"), whole])
    structure = json.dumps({"type": "structural_tag", "format": whole})
    if len(structure) > _MOST_CHARACTERS or _levels(whole) > _MOST_LEVELS:
        raise GuideRefused(
            f"response_format and tool_choice: a schema has {len(structure)} characters on {_levels(whole)} levels, and"
            f" {_MOST_CHARACTERS} on {_MOST_LEVELS} are supported. Shorten them, or ask for a json_object."
        )
    for schema in _schemas(call):
        if (place := endless_part(schema)) is not None:
            raise GuideRefused(
                f"response_format and tool_choice: no JSON that ends fits the schema at {place}: it requires itself, "
                "or allows nothing. Take it out of required and properties, or let it be null, too."
            )
    return structure


def _levels(value: Any) -> int:
    """How deep a JSON value is nested: 0 for a number."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_levels, parts), default=0)


def _schemas(call: ChatCall) -> list[Mapping[str, Any]]:
    """The schemas that an answer is led by."""
    if call.schema is not None:
        return [call.schema]
    found = [tool["function"].get("parameters") for tool in call.tools if tool["function"]["name"] in call.must_call]
    return [schema for schema in found if isinstance(schema, Mapping)]


def _json(schema: Mapping[str, Any], parser: Parser) -> dict[str, Any]:
    whole = {**JSON, "json_schema": dict(schema)}
    return _sequence([*_literal(_FINAL, parser), whole]) if parser.form is HARMONY else whole


def _calls(call: ChatCall, parser: Parser) -> dict[str, Any]:
    if parser.form is None or (form := parser.form.guide) is None:
        raise GuideRefused(
            "tool_choice: only auto and none work with this model's form of calls, which its tokenizer describes "
            "(response_template): others are led for the forms of docs/agents.md."
        )
    tags = [_call(tool, form, parser) for tool in call.tools if tool["function"]["name"] in call.must_call]
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator or "",
        "at_least_one": True,
        "stop_after_first": form.separator is None,
    }
    return _sequence([*_literal(form.opening, parser), calls, *_literal(form.closing, parser)])


def _call(tool: Tool, form: Guide, parser: Parser) -> dict[str, Any]:
    function = tool["function"]
    if not _NAME.fullmatch(function["name"]):
        raise GuideRefused(f"tool_choice: no call can be led to {function['name']!r}. Use letters, digits, _ and -.")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    before, _, behind = form.begin.partition("NAME")
    name = _text(function["name"])
    first, *others = _joined([*_literal(before, parser), name, *_literal(behind, parser)])
    last = _literal(form.end, parser)
    is_text = len(last) == 1 and last[0]["type"] == "const_string"
    content = _sequence([*others, {**form.content, "json_schema": schema}, *(() if is_text else last)])
    begin = first["value"] if first["type"] == "const_string" else first
    return {"type": "tag", "begin": begin, "content": content, "end": last[0]["value"] if is_text else ""}


def _literal(text: str, parser: Parser) -> list[dict[str, Any]]:
    """A text in parts: special tokens, which no engine matches by their letters, by their ids. One that ends answers
    may be left out, since engines demand such a token only where nothing else can follow."""
    ends, special = parser.encoder.ends, parser.special
    parts = []
    for piece in re.split(f"({special.pattern})", text) if special.pattern else [text]:
        if special.pattern and special.fullmatch(piece):
            (token,) = parser.encoder.encode(piece).tolist()
            part = {"type": "token", "token": token}
            parts.append({"type": "optional", "content": part} if token in ends.tokens else part)
        elif piece:
            parts.append(_text(piece))
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with texts that follow each other as one."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and part["type"] == found[-1]["type"] == "const_string":
            found[-1] = _text(found[-1]["value"] + part["value"])
        else:
            found.append(part)
    return found


def _sequence(elements: list[Any]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}
