"""The grammar of `device_mapping`: a YAML list, or a string such as `list(range(0,8)) + [12,13]`. Read, never
evaluated."""

import ast

from roll.configs.limits import MOST_DEVICES
from roll.utils.text import show

GRAMMAR = "a list such as [0, 1, 2], list(range(start, stop[, step])), list([0, 1]), or a sum of these"


def parse_device_mapping(value: object) -> tuple[int, ...]:
    """Device ids in the order written.

    Raises ValueError when the text is outside the grammar, holds something else than whole numbers >= 0, or is empty.

    Example: parse_device_mapping("list(range(0, 4)) + [8]") == (0, 1, 2, 3, 8)
    """
    if isinstance(value, str):
        ids = _parse_text(value)
    elif isinstance(value, list | tuple):
        ids = [_device_id(item) for item in value]
    else:
        raise ValueError(f"{show(value)} is not {GRAMMAR}")
    if not ids:
        raise ValueError("names no device; remove device_mapping to run the role on CPU workers")
    return tuple(ids)


def _parse_text(text: str) -> list[int]:
    try:
        return _sequence(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{show(text)} is not {GRAMMAR}") from None


def _sequence(node: ast.expr) -> list[int]:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = _sequence(left) + _sequence(right)
            if len(both) > MOST_DEVICES:
                raise ValueError(f"it names more than {MOST_DEVICES} devices, the limit")
            return both
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_device_id(_integer(item)) for item in items]
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _sequence(inner)
        case ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]) if 1 <= len(bounds) <= 3:
            return _range([_integer(bound) for bound in bounds])
    raise ValueError(f"{show(ast.unparse(node))} is not {GRAMMAR}")


def _range(bounds: list[int]) -> list[int]:
    if len(bounds) == 3 and bounds[2] == 0:
        raise ValueError("range() needs a step other than 0")
    ids = range(*bounds)
    if ids[MOST_DEVICES:]:  # len() of a larger range overflows
        raise ValueError(f"range{tuple(bounds)} names more than {MOST_DEVICES} devices, the limit")
    return [_device_id(item) for item in ids]


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
    raise ValueError(f"{show(ast.unparse(node))} is not a whole number")


def _device_id(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{show(value)} is not a device id (a whole number from 0 on)")
    if value >= MOST_DEVICES:
        raise ValueError(f"device {value} is beyond the limit of {MOST_DEVICES} devices")
    return value
