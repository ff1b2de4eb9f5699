"""The configuration of a run as lines, and where two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll.utils.text import show

ABSENT = "(not there)"


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Each value by its path. Example: {"a": {"b": [1, {"c": 2}]}} -> {"a.b": "[1, {'c': 2}]"}; lists stay whole."""
    return dict(_flat(config, ""))


def _flat(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, inner)
        else:
            yield inner, value if isinstance(value, str) else show(value, 500)


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The keys that some of the configurations have otherwise, with the value in each."""
    trees = [flat(config) for config in configs]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    rows = [(key, [tree.get(key, ABSENT) for tree in trees]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
