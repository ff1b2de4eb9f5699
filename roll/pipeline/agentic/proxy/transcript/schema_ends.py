"""Whether values that a JSON schema describes end: engines that follow one that contains itself would find no token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OF_ONE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_MAPPINGS = ("properties", "patternProperties")


def endless_part(schema: Mapping[str, Any]) -> str | None:
    """Return the place of a part that no value fits which ends, as a JSON pointer: it requires itself, or allows
    nothing. None if there is no such part. A part that is optional counts, since an engine may begin it.

    Example: of {"properties": {"a": {"$ref": "#"}}, "required": ["a"]} it is "#", of the same without `required` None.
    """
    parts = _parts(schema)
    ending: set[int] = set()
    left, num_left = dict(parts), -1
    while num_left != len(left):
        num_left = len(left)
        for key, (_, part) in list(left.items()):
            if _ends(part, schema, ending):
                ending.add(key)
                del left[key]
        left = dict(reversed(left.items()))  # whatever the order, a round or two settle most schemas
    return next((place for key, (place, _) in parts.items() if key in left), None)


def _parts(root: Mapping[str, Any]) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """The schema and all that it reaches, by identity, each with a place."""
    found: dict[int, tuple[str, Mapping[str, Any]]] = {}
    waiting: list[tuple[str, Any]] = [("#", root)]
    while waiting:
        place, part = waiting.pop()
        if not isinstance(part, Mapping) or id(part) in found:
            continue
        found[id(part)] = place, part
        waiting += [(f"{place}/{name}", inner) for name, inner in _inner(part)]
        if (target := reference_target(part, root)) is not None:
            waiting.append((str(part["$ref"]), target))
    return found


def _inner(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if name in _OF_ONE:
            yield name, value
        elif name in _OF_LISTS and isinstance(value, list):
            yield from ((f"{name}/{number}", inner) for number, inner in enumerate(value))
        elif name in _OF_MAPPINGS and isinstance(value, Mapping):
            yield from ((f"{name}/{key}", inner) for key, inner in value.items())


def reference_target(part: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
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


def _ends(part: Mapping[str, Any], root: Mapping[str, Any], ending: set[int]) -> bool:
    """Whether some value fits that holds nothing but parts which are known to end."""

    def ends(inner: Any) -> bool:
        return id(inner) in ending if isinstance(inner, Mapping) else inner is not False

    if (target := reference_target(part, root)) is not None:
        return ends(target)
    if isinstance(choices := part.get("enum"), list):
        return bool(choices)
    if "const" in part:
        return True
    for name in ("anyOf", "oneOf"):
        if isinstance(part.get(name), list) and not any(map(ends, part[name])):
            return False
    if isinstance(part.get("allOf"), list) and not all(map(ends, part["allOf"])):
        return False
    kinds = part.get("type")
    if kinds is None:
        kinds = [kind for kind, names in _TELLING.items() if any(name in part for name in names)]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not kinds or not {"object", "array"}.issuperset(kinds):
        return True
    return ("object" in kinds and _object_ends(part, ends)) or ("array" in kinds and _array_ends(part, ends))


_TELLING = {"object": ("properties", "required"), "array": ("items", "prefixItems")}


def _object_ends(part: Mapping[str, Any], ends: Any) -> bool:
    required, properties = part.get("required"), part.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    names = required if isinstance(required, list) else []
    return all(ends(properties.get(name, part.get("additionalProperties"))) for name in names if isinstance(name, str))


def _array_ends(part: Mapping[str, Any], ends: Any) -> bool:
    first, fewest = part.get("prefixItems"), part.get("minItems")
    first = first if isinstance(first, list) else []
    needs_more = isinstance(fewest, int) and fewest > len(first)
    return all(map(ends, first)) and (not needs_more or ends(part.get("items")))
