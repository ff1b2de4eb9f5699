"""Whole-number arithmetic of a shell, `$((...))`, read and computed without running anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def whole_number(text: str, variables: Mapping[str, str]) -> int | None:
    """Whole-number arithmetic as a shell does it; None for anything else, and where a variable is not known."""
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
    try:
        return _computed(ast.parse(plain, mode="eval").body, variables)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None


def _computed(node: ast.expr, variables: Mapping[str, str]) -> int:
    match node:
        case ast.Constant(value=int() as value) if abs(value) < 1 << 63:
            return value
        case ast.Name(id=name):
            return int(variables[name] or 0)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand, variables)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_computed(left, variables), _computed(right, variables))
    raise ValueError(type(node).__name__)
