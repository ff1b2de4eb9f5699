"""Whole-number arithmetic of a shell, `$((...))` and `$[...]`, read and computed without running anything."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^!~?:()])"
)
_NAMED = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_MOST = 1 << 63
_DEEPEST, _MOST_LOOKS = 20, 1000


def _divided(first: int, second: int) -> int:
    """Towards 0, as a shell divides."""
    return abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)


def _power(first: int, second: int) -> int:
    if not 0 <= second < 64:
        raise ValueError(second)
    return int(first**second)


def _shifted(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shifted(first: int, second: int) -> int:
        if not 0 <= second < 64:
            raise ValueError(second)
        return by(first, second)

    return shifted


_OPERATORS: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    ">": (7, lambda a, b: int(a > b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, _shifted(operator.lshift)),
    ">>": (8, _shifted(operator.rshift)),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divided),
    "%": (10, lambda a, b: a - b * _divided(a, b)),
    "**": (11, _power),
}
_UNARY: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "!": lambda a: int(not a),
    "~": operator.invert,
}


def whole_number(text: str, variables: Mapping[str, str]) -> int | None:
    """Whole-number arithmetic as a shell does it; None for anything else, and where a variable is not known."""
    try:
        return _Sum(text, _Names(variables), 0).value()
    except (ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None


class _Names:
    """Values by name, each of which may be a sum of further names: looked up so many times and no more."""

    def __init__(self, variables: Mapping[str, str]):
        self._variables, self._looks = variables, 0

    def value(self, name: str) -> str:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise ValueError(name)
        return self._variables[name].strip()


class _Sum:
    def __init__(self, text: str, names: _Names, depth: int):
        self._tokens = _tokens(_NAMED.sub(r" \1\2 ", text))
        self._names, self._depth, self._at = names, depth, 0
        if depth > _DEEPEST:
            raise ValueError(text)

    def value(self) -> int:
        number = self._choice()
        if self._at < len(self._tokens):
            raise ValueError(self._tokens[self._at])
        return number

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, sign: str) -> None:
        if self._next() != sign:
            raise ValueError(sign)
        self._at += 1

    def _choice(self) -> int:
        test = self._above(0)
        if self._next() != "?":
            return test
        self._at += 1
        first = self._choice()
        self._take(":")
        second = self._choice()
        return first if test else second

    def _above(self, least: int) -> int:
        """Evaluate the operators that bind more tightly than `least`."""
        number = self._one()
        while (known := _OPERATORS.get(self._next())) and known[0] > least:
            sign = self._next()
            self._at += 1
            second = self._above(known[0] - (sign == "**"))
            number = known[1](number, second)
            if abs(number) >= _MOST:
                raise ValueError(number)
        return number

    def _one(self) -> int:
        token = self._next()
        self._at += 1
        if token == "(":
            number = self._choice()
            self._take(")")
            return number
        if token in _UNARY:
            return _UNARY[token](self._one())
        if token[:1].isdigit():
            return _written(token)
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise ValueError(token)
        value = self._names.value(token)
        return _Sum(value, self._names, self._depth + 1).value() if value else 0


def _written(token: str) -> int:
    """Example: 0x10 is 16, and 010 is 8, as in C."""
    if len(token) > 40:
        raise ValueError(token)
    base, sign, digits = token.partition("#")
    if sign:
        return int(digits, int(base))
    value = int(token, 0) if token[:2].lower() == "0x" else int(token, 8 if token[0] == "0" and token != "0" else 10)
    if value >= _MOST:
        raise ValueError(token)
    return value


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) > 1000:
            raise ValueError(text[at : at + 20])
        tokens.append(match[1])
        at = match.end()
    return tokens
