"""Arguments of tool calls as values: JSON read strictly, and texts between marks read by the tool's schema."""

import json
from collections.abc import Mapping
from typing import Any

_PYTHON = {"True": True, "False": False, "None": None}  # as Jinja's filter `string` writes them

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
          type(None): "null"}  # fmt: skip
_ALL = frozenset(_KINDS.values())
_DEEPEST = 5  # references and choices inside each other: a schema may lead back to itself


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
    kinds = _kinds(part, schema)
    if kinds <= {"string", "null"}:
        return text
    try:
        value = _PYTHON[text] if text in _PYTHON else JSON_DECODER.decode(text)
    except ValueError:
        return text
    if "string" in kinds and _KINDS[type(value)] not in kinds and value is not None:
        return text
    if isinstance(value, float) and value.is_integer() and "number" not in kinds and "integer" in kinds:
        return int(value)
    return text if isinstance(value, str) else value


def _kinds(part: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The types of JSON that the schema `part` allows; `root`: where its references lead."""
    if not isinstance(part, Mapping) or depth > _DEEPEST:
        return _ALL
    kinds = part.get("type")
    named = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else _ALL
    found = frozenset(kind for kind in _ALL if kind in named or (kind == "integer" and "number" in named)) or _ALL
    choices = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(choices, list):
        found &= {_KINDS.get(type(choice), "object") for choice in choices}
    for key in ("anyOf", "oneOf"):
        if isinstance(part.get(key), list) and part[key]:
            found &= frozenset().union(*(_kinds(one, root, depth + 1) for one in part[key]))
    others = part["allOf"] if isinstance(part.get("allOf"), list) else []
    if isinstance(path := part.get("$ref"), str) and path.startswith("#"):
        place = root
        for step in path.split("/")[1:]:
            place = place.get(step) if isinstance(place, Mapping) else None
        others = [*others, place]
    for one in others:
        found &= _kinds(one, root, depth + 1)
    return found
