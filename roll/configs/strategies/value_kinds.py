"""Types of the values that an engine takes, read from annotations as its own source has them, and what does not fit."""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.problems import Problem
from roll.utils.text import show

LARGEST_INT = 2**63 - 1
KIND_NAMES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}
_NAMES = {"List": "list", "tuple": "list", "Tuple": "list", "set": "list", "Dict": "dict", "Path": "str"} | {
    name: name for name in KIND_NAMES
}
_ANNOTATED = ("Annotated", "A")  # SGLang's short name


@dataclass(frozen=True)
class Kinds:
    """Kinds of value that a setting may have: types by name, and single texts. A range holds for its numbers."""

    names: frozenset[str]
    choices: tuple[Any, ...] = ()
    least: float = -LARGEST_INT
    most: float = LARGEST_INT

    def __or__(self, other: "Kinds") -> "Kinds":
        return Kinds(self.names | other.names, self.choices + other.choices)

    def takes(self, value: Any) -> bool:
        if isinstance(value, bool):
            return "bool" in self.names
        if isinstance(value, int):
            return bool(self.names & {"int", "float"}) or value in self.choices
        if isinstance(value, float):
            return "float" in self.names and math.isfinite(value)
        if isinstance(value, str):
            return "str" in self.names or value in self.choices
        return ("dict" if isinstance(value, Mapping) else "list") in self.names

    @property
    def text(self) -> str:
        names = [KIND_NAMES[name] for name in KIND_NAMES if name in self.names]
        return " or ".join([*names, *([f"one of {', '.join(map(str, self.choices))}"] if self.choices else [])])


def kinds_of(annotation: ast.expr | str) -> Kinds | None:
    """The kinds of an annotation; None where it names a type that only the engine knows.

    Example: `int | None` is a whole number; `Literal["a", "b"]` one of a, b; `CacheDType` None.
    """
    match ast.parse(annotation, mode="eval").body if isinstance(annotation, str) else annotation:
        case ast.Name(id=name) if name in _NAMES:
            return Kinds(frozenset({_NAMES[name]}))
        case ast.Constant(value=None):
            return Kinds(frozenset())
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right])
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return kinds_of(inner)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=members)):
            return _union(members)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[inner, *_])) if name in _ANNOTATED:
            return kinds_of(inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return Kinds(frozenset(), tuple(item.value for item in members if isinstance(item, ast.Constant)))
        case ast.Subscript(value=ast.Name(id=name)) if name in _NAMES:
            return Kinds(frozenset({_NAMES[name]}))
    return None


def _union(members: list[ast.expr]) -> Kinds | None:
    union = Kinds(frozenset())
    for member in members:
        kinds = kinds_of(member)
        if kinds is None:
            return None
        union = union | kinds
    return union


def class_annotations(tree: ast.Module, names: tuple[str, ...] = ()) -> dict[str, ast.expr]:
    """Annotated names of the classes of a module (all, or the named ones), without importing it."""
    return {
        statement.target.id: statement.annotation
        for node in tree.body
        if isinstance(node, ast.ClassDef) and (not names or node.name in names)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def misfits(at: str, config: Mapping[str, Any], kinds: Mapping[str, Kinds]) -> Iterator[Problem]:
    """Values of another type or range than their key takes. null, and keys without kinds, are left to the engine."""
    for key, value in config.items():
        allowed = kinds.get(key)
        if value is None or allowed is None or not (allowed.names or allowed.choices):
            continue
        path = f"{at}.{key}"
        if not allowed.takes(value):
            yield Problem(f"{path}: {show(value)} must be {allowed.text}.", (path,))
        elif isinstance(value, int | float) and not allowed.least <= value <= allowed.most:
            yield Problem(f"{path}: {show(value)} must be between {allowed.least:g} and {allowed.most:g}.", (path,))
