"""`${...}` of a composed tree: which variables are used, what they name, and how much they become once written out."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roll.errors import ConfigError

REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w-]*)(?=[.\[}\s])")
WHOLE_REFERENCE = re.compile(r"\$\{\s*([\w.-]+)\s*\}")
MAX_WEIGHT = 2_000_000  # values and characters
MAX_CHAIN = 60

_ANY = re.compile(r"(?<!\\)\$\{\s*(\.*)([\w.\[\]-]+)\s*\}")
_PARTS = re.compile(r"[^.\[\]]+")
Path = tuple[Any, ...]


def references(value: Any) -> Iterable[str]:
    """First parts of all absolute `${...}` in a tree: the top-level keys that are used as variables."""
    if isinstance(value, str):
        yield from REFERENCE.findall(value)
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from references(child)


def crosses_reference(tree: Mapping[str, Any], key: str) -> bool:
    """True if the way to a key leads through a `${...}`."""
    node: Any = tree
    for part in key.split(".")[:-1]:
        node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, str):
            return True
    return False


def lookup(tree: dict[str, Any], dotted: str, where: str) -> Any:
    """What `${dotted}` names, following references. The tree has been through `check_references`."""
    node: Any = tree
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, str) and (match := WHOLE_REFERENCE.fullmatch(node.strip())):
            node = lookup(tree, match[1], where)
    if node is None:
        raise ConfigError(f"{where}: ${{{dotted}}} leads nowhere.")
    return node


def check_references(tree: dict[str, Any]) -> None:
    """Raises ConfigError for `${...}` that lead back to themselves, or that written out would fill the memory.

    Example: `a: ${b}${b}`, `b: ${c}${c}`, and so on, 40 times, is a text of 10^12 characters.
    """
    _Weights(tree).of((), ())


class _Weights:
    """Values and characters below each path, with every reference counted as what it names."""

    def __init__(self, tree: dict[str, Any]):
        self._tree = tree
        self._known: dict[Path, int] = {}

    def of(self, path: Path, chain: tuple[Path, ...]) -> int:
        """`chain`: the references that led here."""
        if path in self._known:
            return self._known[path]
        node = _node(self._tree, path)
        weight = 1
        if isinstance(node, str):
            weight += len(node)
            for target in _targets(node, path):
                if target == path[: len(target)] or target in chain:
                    raise ConfigError(f"{_text(path)}: {node[:80]} refers to itself.")
                if len(chain) >= MAX_CHAIN:
                    raise ConfigError(
                        f"{_text(path)}: {node[:80]} goes through more than {MAX_CHAIN} other references."
                    )
                weight += self.of(target, (*chain, target))
        elif isinstance(node, dict | list):
            for key in node if isinstance(node, dict) else range(len(node)):
                weight += self.of((*path, key), chain)
        if weight > MAX_WEIGHT:
            raise ConfigError(f"{_text(path) or 'the YAML'} is too large with its ${{...}} written out.")
        self._known[path] = weight
        return weight


def _targets(text: str, path: Path) -> Iterator[Path]:
    """Paths that the references of a text at `path` name."""
    if "${" not in text:
        return
    for dots, dotted in _ANY.findall(text):
        parts: Path = tuple(_PARTS.findall(dotted))
        yield path[: len(path) - len(dots)] + parts if dots and len(dots) <= len(path) else parts


def _node(tree: Any, path: Path) -> Any:
    for part in path:
        if isinstance(tree, list) and str(part).isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _text(path: Path) -> str:
    return ".".join(map(str, path))
