"""Names of the library are words of the field: none of the words that say nothing to a stranger stands alone as one."""

import ast
from collections.abc import Iterator

import pytest

from tests.helpers.cases import cases
from tests.layout.source import Module, modules, parse

_WORDS = "told tell found given asked own left seen kept further lesson study words trees lane seat brought look"
BANNED = frozenset(_WORDS.split(" "))


def named(module: Module) -> Iterator[tuple[str, int]]:
    """(definition with its class, line) of functions, classes, methods, fields, attributes and a module's constants."""
    yield from _of_body(module.tree.body, "")


def _of_body(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, int]]:
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield owner + name, node.lineno
                yield from _of_body(node.body, f"{owner}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield owner + name, node.lineno
                if owner:
                    yield from _attributes(node, owner)
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _targets(target, owner)
            case ast.AnnAssign(target=target):
                yield from _targets(target, owner)
            case ast.If() | ast.Try() | ast.With():
                yield from _of_body([*node.body, *getattr(node, "orelse", [])], owner)


def _targets(target: ast.expr, owner: str) -> Iterator[tuple[str, int]]:
    match target:
        case ast.Name(id=name):
            yield owner + name, target.lineno
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from _targets(element, owner)


def _attributes(function: ast.AST, owner: str) -> Iterator[tuple[str, int]]:
    """What a method sets on its object."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield owner + name, node.lineno


def banned(module: Module) -> Iterator[str]:
    """Where a banned word is a whole name; underscores and capitals before and after it do not count."""
    for definition, line in dict(named(module)).items():
        word = definition.rpartition(".")[2].strip("_").lower()
        if word in BANNED:
            yield f"{module.relative}:{line}: {definition}: say what it is (CONTRIBUTING.md, Names)"


def test_no_name_of_the_library_is_a_banned_word() -> None:
    assert [text for module in modules("roll") for text in banned(module)] == []


@cases("text")
def test_banned_word_as_a_whole_name_is_found(text: str) -> None:
    assert len(list(banned(parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def kept_fraction(): pass",
        "def run():\n    found = 1",
        "class A:\n    def run(self, given): other.told = 1",
    ],
)
def test_longer_names_locals_and_parameters_are_not_looked_at(text: str) -> None:
    assert list(banned(parse(text))) == []
