"""What `algorithm` puts into a tree, and says in a plan. What a YAML says itself stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.presets.table import PRESETS

_OFF_AT_NULL = ("value_clip", "group_filter_cls")
"""Keys of which null is a value; at all others it means that nothing is said."""


def fill_algorithm(filled: dict[str, Any]) -> None:
    """Puts in what the algorithm of a raw tree asks for, where the tree says nothing."""
    name = filled.get("algorithm")
    preset = PRESETS.get(name) if isinstance(name, str) else None
    for key, value in preset.settings.items() if preset else ():
        for holder, last in _places(filled, key):
            if holder.get(last) is None and not (last in holder and last in _OFF_AT_NULL):
                holder[last] = value


def _places(tree: dict[str, Any], key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Places of a key in the tree, as (mapping, last part); none if its section is missing."""
    section, _, last = key.rpartition(".")
    if not section:
        yield tree, key
        return
    name, star, _ = section.partition(".*")
    inner = tree.get(name)
    if not isinstance(inner, Mapping):
        return
    tree[name] = {key: dict(value) if star and isinstance(value, Mapping) else value for key, value in inner.items()}
    yield from ((entry, last) for entry in (tree[name].values() if star else [tree[name]]) if isinstance(entry, dict))


def preset_rows(name: str | None, value: Any) -> Iterator[tuple[str, str]]:
    """Rows of a plan: what the algorithm has set, and what the YAML says instead. `value` gives the value of a key."""
    if name is None:
        return
    plain = {key: wanted for key, wanted in PRESETS[name].settings.items() if "." not in key}
    kept = {key: wanted for key, wanted in plain.items() if value(key) == (None if wanted == "none" else wanted)}
    yield "algorithm", f"{name} sets " + ", ".join(f"{key} {_text(wanted)}" for key, wanted in kept.items())
    if others := [key for key in plain if key not in kept]:
        told = ", ".join(f"{key} {_text(value(key))} instead of {_text(plain[key])}" for key in others)
        yield "", f"the YAML has {told}"


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
