"""Whole-number arithmetic of a shell, `$((...))` and `$[...]`, read and computed without running anything."""

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
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
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
            first, second = _computed(left, variables), _computed(right, variables)
            if isinstance(op, ast.Pow | ast.LShift) and not (0 <= second < 64 and abs(first) < 1 << 63):
                raise ValueError(second)
            return _OPERATORS[type(op)](first, second)
    raise ValueError(type(node).__name__)
