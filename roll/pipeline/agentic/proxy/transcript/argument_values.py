"""Arguments of tool calls as values: JSON read strictly, and texts between marks read by the tool's schema."""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

_KINDS: Mapping[type, tuple[str, ...]] = {
    str: ("string",),
    int: ("integer", "number"),
    float: ("number",),
    bool: ("boolean",),
    dict: ("object",),
    list: ("array",),
    type(None): ("null",),
}
_PYTHON = {"True": True, "False": False, "None": None}  # as Jinja's filter `string` writes them


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


JSON_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses a key that stands twice in an object."""


def argument_value(text: str, name: str, schema: Any) -> Any:
    """The value of an argument that a template wrote as it is, if it is a text, and as JSON or by `str` otherwise.
    `schema`: of the tool's parameters. Where it takes texts, only what a template writes exactly so is another value.
    What fits nothing is read as JSON if it is some.

    Example: "5" is 5 for {"type": "integer"}, {"enum": [5, 6]} and {}, "5.0" is 5 for an integer, and " 5" is a text
    for {}.
    """
    readings = list(_readings(text))
    is_text = _fits({name: text}, schema, schema, {})
    for value in readings:
        is_written = text in (json.dumps(value, ensure_ascii=False), str(value))
        if (is_written or not is_text) and _fits({name: value}, schema, schema, {}):
            return value
    return text if is_text or not readings else readings[0]


def _readings(text: str) -> Iterator[Any]:
    """Yield the values other than itself that a text may stand for."""
    try:
        value = _PYTHON[text] if text in _PYTHON else JSON_DECODER.decode(text)
    except (ValueError, RecursionError):
        if text.lstrip()[:1] not in ("[", "{"):
            return
        try:
            value = json.loads(json.dumps(ast.literal_eval(text.strip())))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return
    if not isinstance(value, str):
        yield value
    if isinstance(value, float) and value.is_integer():
        yield int(value)


def _fits(value: Any, schema: Any, root: Any, known: dict[tuple[int, int], bool]) -> bool:
    """Whether a value has the types, and is among the choices, that a schema allows, in all its parts. Nothing else
    that a schema asks for counts. `known`: results so far, which end circles."""
    if not isinstance(schema, Mapping):
        return schema is not False
    key = id(schema), id(value)
    if key not in known:
        known[key] = True
        known[key] = all(_checks(value, schema, root, known))
    return known[key]


def _checks(value: Any, schema: Mapping[str, Any], root: Any, known: dict[tuple[int, int], bool]) -> Iterator[bool]:
    def fits(part: Any, inner: Any = value) -> bool:
        return _fits(inner, part, root, known)

    kinds, choices = schema.get("type"), [schema["const"]] if "const" in schema else schema.get("enum")
    if kinds is not None and not (value is None and schema.get("nullable")):
        yield any(kind in kinds if isinstance(kinds, list) else kind == kinds for kind in _KINDS[type(value)])
    if isinstance(choices, list):
        yield any(type(value) is type(choice) and value == choice for choice in choices)
    yield fits(_reference_target(schema, root))
    for name, combined in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if isinstance(parts := schema.get(name), list):
            yield combined(map(fits, parts))
    if isinstance(value, dict):
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        properties = properties if isinstance(properties, Mapping) else {}
        yield all(fits(properties.get(name, others), inner) for name, inner in value.items())
    if isinstance(value, list):
        yield all(fits(schema.get("items"), inner) for inner in value)


def _reference_target(part: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return what a reference within the schema names; None for any other, which engines refuse themselves."""
    reference = part.get("$ref")
    if not isinstance(reference, str) or reference[:2] not in ("#", "#/"):
        return None
    value: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
