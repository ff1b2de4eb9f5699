"""What depends on a strategy asks its spec: no strategy's name decides anything outside the table of specs."""

import ast
from collections.abc import Iterator

import pytest

from roll.configs.strategies.table import STRATEGIES
from tests.helpers.cases import cases
from tests.layout.source import Module, modules, parse

TABLE = "roll.configs.strategies.table"
FAMILIES = {"deepspeed", "megatron", "hf", "fsdp2"}  # as beginnings of names


def decisions_by_name(module: Module) -> Iterator[str]:
    """Comparisons with a strategy's name (`==`, `in`, `match`) or the beginning of one (`startswith`), and tables that
    have such names as keys or entries. A text that names one for people decides nothing."""
    for node in module.nodes:
        parts: list[ast.AST] = []
        names = set(STRATEGIES) | (FAMILIES if isinstance(node, ast.Call) else set())
        if isinstance(node, ast.Compare):
            parts = [each for side in (node.left, *node.comparators) for each in entries(side)]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            parts = [each for argument in node.args for each in entries(argument)]
        for part in parts:
            if isinstance(part, ast.Constant) and part.value in (
                names | FAMILIES if isinstance(node, ast.Call) else names
            ):
                yield f"{module.relative}:{part.lineno}: {part.value!r} decides; ask the spec ({TABLE})"


def entries(node: ast.AST) -> list[ast.AST]:
    return [*node.elts] if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def test_no_name_of_a_strategy_decides_anything_outside_the_table() -> None:
    found = [text for module in modules("roll") if module.name != TABLE for text in decisions_by_name(module)]
    assert found == []


@cases("text")
def test_a_decision_by_name_is_found(text: str) -> None:
    assert list(decisions_by_name(parse(text)))


@pytest.mark.parametrize("text", ["import vllm", "x = 'vllm did not start'", "spec = find_spec('vllm')"])
def test_a_mere_name_is_left_alone(text: str) -> None:
    assert list(decisions_by_name(parse(text))) == []
