"""Values of parsed mathematics, compared part by part: numbers exactly or by relative difference, never by how many
decimals are zero. Importing sympy takes a second."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import sympy
from sympy.matrices import MatrixBase

from roll.utils.answers.numbers import PlainNumber, agree

_PLACES = 50
_SAME = Fraction(1, 10**40)  # of irrational numbers that are computed to 50 digits
_NONE = Fraction(1, 10**45)  # what is left of an irrational number that is 0
_FLOATS = 1e-6  # numbers that hold a decimal, such as 0.5 pi
_POINTS = ((Fraction(17, 7), Fraction(23, 11), Fraction(31, 13)), (Fraction(5, 9), Fraction(3, 7), Fraction(8, 19)))

Number = tuple[Fraction, Fraction, str]
"""Real and imaginary part, and what is known of it: rational, irrational, or float."""


def same(gold: Any, pred: Any, tolerance: float | None = None) -> bool | None:
    """Are two values equal? None where they are no numbers, nor tuples, sets, intervals or matrices of numbers."""
    if isinstance(gold, PlainNumber) and isinstance(pred, PlainNumber):
        return agree(gold, pred, tolerance)
    if isinstance(gold, sympy.FiniteSet) and len(gold) == 1 and not isinstance(pred, sympy.Set):
        gold = gold.args[0]
    elif isinstance(pred, sympy.FiniteSet) and len(pred) == 1 and not isinstance(gold, sympy.Set):
        pred = pred.args[0]
    one, other = number_of(gold), number_of(pred)
    if one is not None and other is not None:
        return _equal(gold, pred, one, other, tolerance)
    if isinstance(gold, PlainNumber) or isinstance(pred, PlainNumber):
        return None
    if isinstance(gold, sympy.Interval) and isinstance(pred, sympy.Interval):
        ends = ((gold.start, pred.start), (gold.end, pred.end))
        if (gold.left_open, gold.right_open) != (pred.left_open, pred.right_open):
            return False
        return _all([same(*pair, tolerance) for pair in ends])
    if isinstance(gold, MatrixBase) and isinstance(pred, MatrixBase):
        if gold.shape != pred.shape:
            return False
        return _all([same(*pair, tolerance) for pair in zip(gold.flat(), pred.flat(), strict=True)])
    if isinstance(gold, sympy.Tuple) and isinstance(pred, sympy.Tuple):
        pairs = zip(gold.args, pred.args, strict=False)
        return len(gold) == len(pred) and _all([same(*pair, tolerance) for pair in pairs])
    both = (sympy.FiniteSet, sympy.Union)
    if isinstance(gold, both) and type(gold).__name__ == type(pred).__name__:
        return len(gold.args) == len(pred.args) and _matched(gold.args, list(pred.args), tolerance)
    return None


def _matched(gold: Sequence[Any], pred: list[Any], tolerance: float | None) -> bool | None:
    for one in gold:
        verdicts = [same(one, other, tolerance) for other in pred]
        if True not in verdicts:
            return None if None in verdicts else False
        pred.pop(verdicts.index(True))
    return True


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def number_of(expression: Any) -> Number | None:
    """None for what is no finite number."""
    if isinstance(expression, PlainNumber):
        return expression.value, Fraction(0), "rational"
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    try:
        value = expression.doit()
        if isinstance(value, sympy.Rational):
            return _fraction(value), Fraction(0), "rational"
        is_float = bool(expression.atoms(sympy.Float))
        parts = [_fraction(part) for part in sympy.N(value, _PLACES).as_real_imag()]
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None
    if is_float:
        return parts[0], parts[1], "float"
    return parts[0], parts[1], "irrational"


def _fraction(part: Any) -> Fraction:
    """Raises ValueError for infinities and what is no number."""
    if isinstance(part, sympy.Rational) and part.is_finite:
        return Fraction(int(part.p), int(part.q))
    if isinstance(part, sympy.Float) and part.is_finite:
        rational: Any = sympy.Rational(part)
        return Fraction(int(rational.p), int(rational.q))
    raise ValueError(f"{part} is no number")


def _equal(gold: Any, pred: Any, one: Number, other: Number, tolerance: float | None) -> bool:
    if isinstance(gold, PlainNumber) or isinstance(pred, PlainNumber):
        plain, number, value = (gold, other, pred) if isinstance(gold, PlainNumber) else (pred, one, gold)
        if number[1] and abs(number[1]) > _NONE:
            return False
        if number[2] != "float" and not (number[2] == "irrational" and plain.value == 0):
            return agree(plain, PlainNumber(_rounded(number[0], value)), tolerance)
    gap = max(abs(one[0] - other[0]), abs(one[1] - other[1]))
    greater = max(*(abs(part) for number in (one, other) for part in number[:2]))
    kinds = {one[2], other[2]}
    if tolerance is not None and kinds != {"rational"} and "float" in kinds:
        return gap <= Fraction(tolerance) * greater
    if "float" in kinds:
        return gap <= Fraction(_FLOATS) * min(greater, Fraction(1))
    if kinds == {"rational"}:
        return gap == 0
    return gap <= _SAME * greater or greater <= _NONE or (gap <= _NONE and 0 in (one[0], other[0]))


def _rounded(value: Fraction, expression: Any) -> Fraction:
    """A computed number that is a whole one, but for the last of its digits, is meant to be one."""
    whole = Fraction(round(value))
    return whole if value != whole and abs(value - whole) <= _SAME * max(abs(value), 1) and expression != 0 else value


def joined(word: str, parts: Sequence[Any]) -> Any:
    """The set of all that fulfils one of these relations ("or") or each of them ("and"), or is in one or each of these
    sets; None where one is neither."""
    try:
        kind: Any = {"or": sympy.Union, "and": sympy.Intersection}[word]
        return kind(*(part if isinstance(part, sympy.Set) else part.as_set() for part in parts))
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def differ(gold: Any, pred: Any) -> bool:
    """True if two expressions of the same symbols are clearly different numbers where the symbols are some."""
    if not (isinstance(gold, sympy.Expr) and isinstance(pred, sympy.Expr)):
        return False
    symbols = sorted(gold.free_symbols, key=str)
    if not symbols or gold.free_symbols != pred.free_symbols or len(symbols) > len(_POINTS[0]):
        return False
    for point in _POINTS:
        at: Any = {
            symbol: sympy.Rational(x.numerator, x.denominator) for symbol, x in zip(symbols, point, strict=False)
        }
        one, other = number_of(gold.subs(at)), number_of(pred.subs(at))
        if one is None or other is None:
            return False
        gap = max(abs(one[0] - other[0]), abs(one[1] - other[1]))
        if gap > Fraction(_FLOATS) * max(*(abs(part) for number in (one, other) for part in number[:2])):
            return True
    return False
