"""What depends on a role asks its row in `roll/configs/tables/roles.py`; no name of a role decides elsewhere."""

import ast
from collections.abc import Iterator

import pytest

from roll.configs.tables.roles import ROLES
from tests.helpers.cases import cases
from tests.layout.source import Module, modules, parse

NAMES = {*ROLES, "validation"}
TABLE = "roll.configs.tables.roles"


def decisions_by_name(module: Module) -> Iterator[str]:
    """Comparisons with a role's name (`==`, `in`, `match`, `startswith`), and tables of a module keyed by such names.
    A text that only names one (an attribute, a key of a tree, a message) decides nothing."""
    for node in module.nodes:
        if isinstance(node, ast.Compare):
            parts: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "with" in node.func.attr:
            parts = list(node.args)
        else:
            continue
        yield from _named(module, parts)
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from _named(module, [node.value])


def _named(module: Module, parts: list[ast.AST]) -> Iterator[str]:
    """The constants that are a role's name, alone or in a tuple, list, set or dict."""
    for part in parts:
        inner: list[ast.AST] = [part]
        if isinstance(part, ast.Tuple | ast.List | ast.Set):
            inner = [*part.elts]
        elif isinstance(part, ast.Dict):
            inner = [key for key in part.keys if key is not None]
        for found in inner:
            if isinstance(found, ast.Constant) and found.value in NAMES:
                yield f"{module.relative}:{found.lineno}: {found.value!r} decides; ask the row of {TABLE}"


def test_no_name_of_a_role_decides_anything_below_the_pipelines() -> None:
    found = [
        text
        for module in modules("roll/configs", "roll/distributed")
        if module.name != TABLE
        for text in decisions_by_name(module)
    ]
    assert found == []


@cases("text")
def test_a_decision_by_name_is_found(text: str) -> None:
    assert list(decisions_by_name(parse(text)))


@pytest.mark.parametrize("text", ["layout['actor_infer']", "x = config.critic", "def f(): return {'critic': 1}"])
def test_a_mere_name_is_left_alone(text: str) -> None:
    assert list(decisions_by_name(parse(text))) == []
