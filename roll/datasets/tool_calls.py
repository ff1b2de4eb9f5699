"""The tools that a conversation offers, and calls of them, as chat templates take them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from roll.datasets.loader import Row
from roll.errors import ConfigError

Tool = Mapping[str, Any]  # a JSON schema, as transformers' templates read it
Call = dict[str, Any]  # {"function": {"name", "arguments"}}, and what else a call has; a message


def plain(value: Any) -> Any:
    """A value of a data file in Python's own types, without the keys that hold null, at any depth: the structs of
    parquet and of data sets have every field that any row has. Lists keep their nulls, which no struct fills in.

    Example: {"city": "Rome", "zip": None, "days": (1, None)} -> {"city": "Rome", "days": [1, None]}.
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        if value and all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in value):
            return {key: plain(inner) for key, inner in value if inner is not None}  # a map of Arrow's
        return [plain(inner) for inner in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy's arrays and numbers, which need no import
        return plain(value.tolist())
    return value


def json_in(text: str, row: Row, column: str) -> Any:
    """Parse the JSON in a column. Raises ConfigError if the text is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{row.where}: column {column!r} is a text but not JSON ({error.msg})") from error


def tools_in(row: Row, column: str, key: str = "tools_key") -> tuple[Tool, ...]:
    """The tools that a column holds, as a list, as one tool, or as JSON, whose nulls stay; none where the row has none.
    Raises ConfigError where it holds something else; `key` names the column."""
    value = plain(row.value(column))
    if isinstance(value, str) and value.strip():
        value = json_in(value, row, column)
    if not value or isinstance(value, str):
        return ()
    tools = [value] if isinstance(value, Mapping) else value
    try:
        tools = [_wrapped(_tool(tool)) for tool in tools]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{row.where}: column {column!r} ({key}) must be a list of tools, each a JSON schema. Set {key} "
            "to another column, or to null if the rows have no tools"
        ) from error
    return tuple(tools)


def _tool(value: Any) -> Tool:
    """A tool, and the schema of its parameters, may be JSON texts."""
    tool = json.loads(value) if isinstance(value, str) else value
    if not isinstance(tool, Mapping):
        raise ValueError("a tool must be a mapping")
    inner = tool.get("function")
    if isinstance(inner, Mapping):
        return {**tool, "function": _tool(inner)}
    parameters = tool.get("parameters")
    return {**tool, "parameters": json.loads(parameters)} if isinstance(parameters, str) and parameters else tool


def _wrapped(tool: Tool) -> Tool:
    """A bare schema as servers hand it to templates: {"type": "function", "function": {"name", ...}}."""
    if "function" in tool or not isinstance(tool.get("name"), str) or tool.get("type", "function") != "function":
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


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


def clean_calls(calls: Any, parses: bool = True) -> list[Call]:
    """The calls of a message, from `plain` values: a list, one call, or the JSON text of either. Each becomes
    {"function": {"name", "arguments"}} with arguments as a mapping: those written as JSON texts are parsed, and what an
    author wrote there stays, nulls too; empty ones are {}. Without `parses` texts stay. Raises ValueError for others.
    """
    if isinstance(calls, str) and calls.strip():
        try:
            calls = json.loads(calls)
        except ValueError:
            raise ValueError("tool_calls must be a list of calls, each a mapping") from None
    calls = [calls] if isinstance(calls, Mapping) else calls or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping | None) for call in calls):
        raise ValueError("tool_calls must be a list of calls, each a mapping")
    return [_clean_call(call, parses) for call in calls if call]


def _clean_call(call: Mapping[str, Any], parses: bool) -> Call:
    """A call is {"function": {"name", "arguments"}}, or what is in there by itself."""
    inner = call.get("function")
    if isinstance(inner, Mapping):
        return {**call, "function": _function(inner, parses)}
    beside = {key: call[key] for key in call if key in ("id", "type")}
    return {
        "type": "function",
        **beside,
        "function": _function({key: call[key] for key in call if key not in beside}, parses),
    }


def _function(inner: Mapping[str, Any], parses: bool) -> Call:
    if not isinstance(inner.get("name"), str) or not inner["name"]:
        raise ValueError(f"a tool call has no name, it has {', '.join(map(str, inner)) or 'nothing'}")
    arguments_key = next((key for key in ("arguments", "parameters") if key in inner), "arguments")
    arguments = inner.get(arguments_key)
    if parses or not isinstance(arguments, str):
        arguments = _arguments(arguments)
    return {**{key: inner[key] for key in inner if key != arguments_key}, "arguments": arguments}


def _arguments(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"arguments of a tool call are not JSON ({error})") from error
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"arguments of a tool call must be a mapping of names to values, not {type(value).__name__}")
    return value or {}


def rendered(apply: Callable[[list[Call]], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """Render the messages with `apply`, a chat template. Templates differ in the form they take calls of tools in:
    arguments as a mapping (most) or as JSON text (DeepSeek-V3), no content beside calls (DeepSeek-R1). The first form
    counts that the template takes and of which it writes the calls. Raises what it raises of the first."""
    error: Exception | None = None
    first: str | None = None
    for form in _forms(messages):
        try:
            text = apply(form)
        except Exception as problem:  # whatever a template raises
            error = error or problem
            continue
        if _is_written(form, text):
            return text
        first = text if first is None else first
    if first is not None:
        return first
    assert error is not None
    raise error


def _forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[Call]]:
    yield [dict(message) for message in messages]
    if any(message.get("tool_calls") for message in messages):
        for as_text, without in ((True, False), (False, True), (True, True)):
            yield [_changed(message, as_text, without) for message in messages]


def _changed(message: Mapping[str, Any], as_text: bool, without: bool) -> Call:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    if as_text:
        calls = [{**call, "function": _with_text_arguments(call["function"])} for call in calls]
    content = None if without and not message.get("content") else message.get("content")
    return {**message, "content": content, "tool_calls": calls}


def _with_text_arguments(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return function
    return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _is_written(messages: Sequence[Mapping[str, Any]], text: str) -> bool:
    """False where a call's name is not in the text, or its arguments are there as Python writes a mapping."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            inner = call.get("function", call)
            arguments = inner.get("arguments")
            is_python = isinstance(arguments, Mapping) and bool(arguments) and str(dict(arguments)) in text
            if is_python or str(inner.get("name")) not in text:
                return False
    return True
