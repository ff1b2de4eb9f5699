"""No test catches what it should show: an error of any kind that nobody looks at, or the failure of its own assert."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.helpers.cases import cases
from tests.layout.source import REPOSITORY

ANY = {"Exception", "BaseException", "AssertionError"}
ON_PURPOSE = {("tests/unit/rewards/user_rewards.py", "pass")}
"""A reward that swallows its alarms, as a user might write it."""


def kinds(node: ast.expr | None) -> set[str]:
    """Names of the classes that an `except` or a call names; a bare `except` is one of any kind."""
    if node is None:
        return {"BaseException"}
    return {ast.unparse(each) for each in (node.elts if isinstance(node, ast.Tuple) else [node])}


def is_empty(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(each, ast.Pass | ast.Continue)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in body
    )


def swallowed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            asserts = [inner for each in node.body for inner in ast.walk(each) if isinstance(inner, ast.Assert)]
            for handler in node.handlers:
                if not kinds(handler.type) & ANY:
                    continue
                ends = isinstance(handler.body[-1], ast.Raise)
                if is_empty(handler.body):
                    yield handler.lineno, ast.unparse(handler.body[-1])
                elif asserts and not ends:
                    yield handler.lineno, "catches the assert above"
                if ends:
                    break
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            named = {kind for argument in node.args[:1] for kind in kinds(argument)}
            if name == "suppress":
                named = {kind for argument in node.args for kind in kinds(argument)}
            if name == "suppress" and named & ANY:
                yield node.lineno, ast.unparse(node)
            if name == "raises" and named & (ANY - {"AssertionError"}):
                yield node.lineno, ast.unparse(node)


def test_no_test_swallows_errors_of_every_kind() -> None:
    found = [
        f"{relative}:{line}: {what}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        for line, what in swallowed(ast.parse(path.read_text(encoding="utf-8")))
        if ((relative := str(path.relative_to(REPOSITORY))), what) not in ON_PURPOSE
    ]
    assert found == [], "name the class of the error, and look at its text"


@cases("text")
def test_forms_that_swallow_are_found(text: str) -> None:
    assert list(swallowed(ast.parse(text)))


@cases("text")
def test_what_names_its_error_is_left_alone(text: str) -> None:
    assert not list(swallowed(ast.parse(text)))
