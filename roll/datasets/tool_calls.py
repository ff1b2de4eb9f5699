"""The tools that a conversation offers, and calls of them, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roll.datasets.json_text import parse_whole
from roll.datasets.loader import Row
from roll.errors import ConfigError

Tool = Mapping[str, Any]  # a JSON schema, as transformers' templates read it


def json_in(text: str, row: Row, column: str) -> Any:
    """What the JSON in a column says. Raises ConfigError where it is none, or no row may hold it."""
    try:
        parsed = parse_whole(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{row.where}: column {column!r} is a text but not JSON ({error.msg})") from error
    if parsed.fault:
        raise ConfigError(f"{row.where}: column {column!r}: {parsed.fault}")
    return parsed.value


def tools_in(row: Row, column: str) -> tuple[Tool, ...]:
    """The tools that a column holds, as a list or as JSON; none where the row has none. Raises ConfigError where it
    holds something else."""
    value = row.value(column)
    if isinstance(value, str) and value:
        value = json_in(value, row, column)
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise ConfigError(
            f"{row.where}: column {column!r} (tools_key) must be a list of tools, each a JSON schema. Set tools_key "
            "to another column, or to null if the rows have no tools"
        )
    return tuple(value)


def calls_in(message: Mapping[str, Any]) -> list[str]:
    """Its calls of tools for a reader, without their ids. Example: 'book({"to": "Rome"})'."""
    calls = message.get("tool_calls")
    return [_call_text(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []


def _call_text(call: Mapping[str, Any]) -> str:
    inner = call.get("function")
    inner = inner if isinstance(inner, Mapping) else call
    arguments = inner.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return f"{inner.get('name')}({arguments})"


def with_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message, with arguments of its tool calls that are JSON texts as mappings. Raises ValueError for others."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError("tool_calls must be a list of calls, each a mapping")
    return {**message, "tool_calls": [_with_arguments(call) for call in calls]} if calls else dict(message)


def _with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call is {"function": {"name", "arguments"}}, or what is in there by itself."""
    inner = call.get("function")
    if isinstance(inner, Mapping):
        return {**call, "function": _with_arguments(inner)}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return dict(call)
    try:
        parsed = parse_whole(arguments)
    except json.JSONDecodeError as error:
        raise ValueError(f"arguments of a tool call are no JSON ({error})") from error
    if parsed.fault:
        raise ValueError(f"the JSON of a tool call's arguments: {parsed.fault}")
    return {**call, "arguments": parsed.value}
