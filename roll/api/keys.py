"""Keys as Python writes them become the tree that a YAML is."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from roll.errors import ConfigError, describe
from roll.utils.imports import SCRIPT_MODULE
from roll.utils.text import show

_NO_FIELDS = "which a YAML cannot hold. Write a number, a text, a list, a mapping, or a function"


class ScriptCode:
    """The functions and classes among the values, under the names that stand for them in the tree."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}

    def path_of(self, key: str, value: Callable[..., Any]) -> str:
        """`roll_script:NAME` of a function, a class or a callable object. Raises ConfigError for one that cannot travel
        to the workers of a run."""
        name = name_of(value)
        number = 1
        while self.objects.setdefault(name, value) is not value:
            number += 1
            name = f"{name_of(value)}_{number}"
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise ConfigError(
                f"{key}: {name} cannot be sent to the workers of the run: {describe(error)}. Create what it holds "
                "inside it, or in its module."
            ) from error
        return f"{SCRIPT_MODULE}:{name}"


def name_of(value: Callable[..., Any]) -> str:
    """A name that metrics can carry: the function's own, that of its class where it has none."""
    wrapped = getattr(value, "func", value)  # of functools.partial
    name = str(getattr(wrapped, "__name__", type(wrapped).__name__))
    return name if name.isidentifier() and not name.startswith("__") else "function"


def nested(keys: Mapping[str, Any], code: ScriptCode) -> dict[str, Any]:
    """The tree of keys that may have dots. Mappings of one section are joined; a later value wins.

    Example: {"a": {"b": 1}, "a.c": 2} -> {"a": {"b": 1, "c": 2}}
    """
    tree: dict[str, Any] = {}
    put(tree, keys, code)
    return tree


def put(tree: dict[str, Any], keys: Mapping[str, Any], code: ScriptCode) -> None:
    """Sets keys in a tree. Raises ConfigError with everything that is none, or that does not fit the tree."""
    problems: list[str] = []
    for key, value in keys.items():
        try:
            _put(tree, _parts(key), _plain(str(key), value, code), str(key))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _parts(key: object) -> list[str]:
    if not isinstance(key, str) or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"{show(key)} is not a key. Write it as in a YAML: actor_train.training_args.learning_rate.")
    return key.split(".")


def _put(tree: dict[str, Any], parts: list[str], value: Any, key: str) -> None:
    node: Any = tree
    for part in parts[:-1]:
        below = node.get(part)
        if below is None:
            below = node[part] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"{key}: {part} is {show(below)}, which has no keys below it.")
        node = below
    last, before = parts[-1], node.get(parts[-1])
    if isinstance(before, dict) and isinstance(value, dict):
        for name, each in value.items():
            _put(before, [name], each, f"{key}.{name}")
    else:
        node[last] = value


def _plain(key: str, value: Any, code: ScriptCode) -> Any:
    """The value as a YAML would bring it."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):  # numpy has numbers and texts that are subclasses
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(f"{key}.{name}", each, code) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(f"{key}[{i}]", each, code) for i, each in enumerate(value)]
    if callable(value):
        return code.path_of(key, value)
    item = getattr(value, "item", None)  # a number of numpy or torch
    if callable(item) and getattr(value, "ndim", None) == 0:
        return item()
    raise ConfigError(f"{key}: {show(value)} is of type {type(value).__name__}, {_NO_FIELDS}.")
