"""The value of a written calculation, without running it as code."""

import ast
import operator
import re
from fractions import Fraction

MAX_CHARACTERS, MAX_DIGITS = 200, 12
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class CalculationProblem(ValueError):
    """The text is no calculation, or has no value."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """(value, the numbers used in their order) of whole numbers with + - * / and parentheses. Exact.

    Example: evaluate("(3 + 5) / 2") == (Fraction(4), [3, 5, 2]). Raises CalculationProblem.
    """
    if len(text) > MAX_CHARACTERS:
        raise CalculationProblem(f"longer than {MAX_CHARACTERS} characters")
    if (odd := re.search(r"[^\d\s+*/()-]", text, re.ASCII)) is not None:
        raise CalculationProblem(f"{odd[0]!r} is not understood")
    numbers = re.findall(r"\d+", text)
    if any(len(number) > MAX_DIGITS for number in numbers):
        raise CalculationProblem(f"a number has more than {MAX_DIGITS} digits")
    written = re.sub(r"\d+", lambda number: str(int(number[0])), " ".join(text.split()))  # Python takes no 07
    try:
        return _value(ast.parse(written, mode="eval").body), [int(number) for number in numbers]
    except SyntaxError as error:
        raise CalculationProblem(f"it goes wrong at character {error.offset} of {written!r}") from None
    except ZeroDivisionError:
        raise CalculationProblem("division by zero") from None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left), _value(right))
    raise CalculationProblem(f"{ast.unparse(node)} is not understood")
