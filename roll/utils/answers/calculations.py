"""The value of a written calculation, without running it as code."""

import re
from fractions import Fraction

MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS = 200, 20, 12
TOKEN = re.compile(r"\s*(\d+|[-+*/()])")


class CalculationProblem(ValueError):
    """The text is no calculation, or has no value."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """(value, the numbers used in their order) of whole numbers with + - * / and parentheses. Exact.

    Example: evaluate("(3 + 5) / 2") == (Fraction(4), [3, 5, 2]). Raises CalculationProblem.
    """
    if len(text) > MAX_CHARACTERS:
        raise CalculationProblem(f"longer than {MAX_CHARACTERS} characters")
    tokens: list[str] = []
    place = 0
    while text[place:].strip():
        match = TOKEN.match(text, place)
        if match is None:
            raise CalculationProblem(f"{text[place:].strip()[0]!r} is not understood")
        tokens.append(match[1])
        place = match.end()
    if any(len(token) > MAX_DIGITS for token in tokens):
        raise CalculationProblem(f"a number has more than {MAX_DIGITS} digits")
    parser = _Parser(tokens)
    value = parser.sum(0)
    if parser.rest:
        raise CalculationProblem(f"{parser.rest[0]!r} is not expected there")
    return value, [int(token) for token in tokens if token.isdigit()]


class _Parser:
    def __init__(self, tokens: list[str]):
        self.rest = tokens

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.rest and self.rest[0] in "+-":
            sign = self._take()
            other = self._product(depth)
            value = value + other if sign == "+" else value - other
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.rest and self.rest[0] in "*/":
            sign = self._take()
            other = self._factor(depth)
            if sign == "/" and other == 0:
                raise CalculationProblem("division by zero")
            value = value * other if sign == "*" else value / other
        return value

    def _factor(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise CalculationProblem("nested too deeply")
        if not self.rest:
            raise CalculationProblem("it ends too early")
        token = self._take()
        if token == "-":
            return -self._factor(depth + 1)
        if token == "(":
            value = self.sum(depth + 1)
            if not self.rest or self._take() != ")":
                raise CalculationProblem("a parenthesis is not closed")
            return value
        if not token.isdigit():
            raise CalculationProblem(f"{token!r} is not expected there")
        return Fraction(int(token))

    def _take(self) -> str:
        token, self.rest = self.rest[0], self.rest[1:]
        return token
