"""Arguments of tool calls as values: JSON read strictly, and texts between marks read by the tool's schema."""

import json
from collections.abc import Mapping
from typing import Any

_PYTHON = {"True": True, "False": False, "None": None}  # as Jinja's filter `string` writes them


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


JSON_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses a key that stands twice in an object."""


def argument_value(text: str, name: str, schema: Any) -> Any:
    """The value of an argument that a template wrote as it is, if it is a text, and as JSON or by `str` otherwise.
    `schema`: of the tool's parameters. An argument that can only be a text stays one.

    Example: "5" is 5 for {"type": "integer"} and {}, and "5" for {"type": "string"}.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    part = properties.get(name) if isinstance(properties, Mapping) else None
    if isinstance(part, Mapping) and _is_text(part):
        return text
    try:
        value = _PYTHON[text] if text in _PYTHON else JSON_DECODER.decode(text)
    except ValueError:
        return text
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole and isinstance(part, Mapping) and part.get("type") == "integer":
        return int(value)
    return text if isinstance(value, str) else value


def _is_text(part: Mapping[str, Any]) -> bool:
    """Whether a schema allows nothing but texts, and perhaps null."""
    choices = part.get("anyOf") or part.get("oneOf")
    if isinstance(choices, list):
        return all(isinstance(one, Mapping) and (_is_text(one) or one.get("type") == "null") for one in choices)
    if isinstance(part.get("enum"), list):
        return all(isinstance(choice, str) for choice in part["enum"])
    kinds = part.get("type")
    return bool(kinds) and {*(kinds if isinstance(kinds, list) else [kinds])} <= {"string", "null"}
