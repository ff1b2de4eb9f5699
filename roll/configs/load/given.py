"""Which keys a YAML says itself, so that what is left to roll can be told from it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from roll.configs.base import join

Given = frozenset[str]
"""Dotted paths of the keys that a tree has, those of sections included."""


def given_keys(tree: Mapping[str, Any]) -> Given:
    """The keys of a raw tree, before anything is filled in. `key: null` says nothing.

    Example: {"seed": 1, "critic": {"name": "c"}} gives seed, critic and critic.name.
    """
    return frozenset(_paths(tree, ""))


def _paths(tree: Mapping[str, Any], at: str) -> Iterator[str]:
    for key, value in tree.items():
        if value is None:
            continue
        path = join(at, key)
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path)


def says_any(given: Collection[str], *keys: str) -> bool:
    """True if the YAML says one of these keys."""
    return any(key in given for key in keys)
