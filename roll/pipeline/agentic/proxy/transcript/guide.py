"""Form of an answer where a request demands one, as a structural tag that engines follow by xgrammar."""

import json
import re
from collections.abc import Mapping
from typing import Any

from roll.errors import EnvError
from roll.pipeline.agentic.proxy.transcript.forms import HARMONY, JSON, Guide
from roll.pipeline.agentic.proxy.transcript.message import ChatCall, Tool
from roll.pipeline.agentic.proxy.transcript.parse import Parser

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
    return structure


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
