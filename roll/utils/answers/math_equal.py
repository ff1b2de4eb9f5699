"""Is an answer mathematically equal to a reference? Plain numbers are read here, all else is parsed by math-verify."""

import logging
import math
import re
from typing import Any

from roll.utils.answers.final_answer import last_boxed
from roll.utils.answers.forms import BOUNDS, MODULUS, normalized, same_words, split, without_unit
from roll.utils.answers.numbers import equal_numbers, read_number
from roll.utils.timing import computed_within

MAX_CHARS = 2000  # a longer text is compared as text: parsing it would only take time
MAX_EXPONENT, MAX_FACTORIAL = 20_000, 1000  # of what is worth computing
COMPARE_LIMIT_S = 5.0  # of CPU time
SMALL = 1e-4  # how far apart, relatively, two numbers may be that math-verify holds for equal
ABOUT = 0.05  # how far apart, relatively, the two sides of an approximation may be
SEVERAL = re.compile(r"[,;]?\s*\b(?:or|and)\b|[,;]")
EQUALS = re.compile(r"(?<![<>!:])=|:=|\\equiv(?![A-Za-z])")
APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")
NAME = re.compile(r"\\?[A-Za-z]+'*(?:_\{?\w+\}?)?(?:\s*\([A-Za-z0-9, ]*\))?|\([A-Za-z]+(?:,\s*[A-Za-z]+)+\)|[A-Za-z ]+")
HEDGE = re.compile(
    r"\b(?:not|neither|nor|never|cannot|maybe|perhaps|between|one of|at least|at most"
    r"|(?:more|less|greater|fewer) than)\b"
    r"|n't\b|\\neq?(?![A-Za-z])|\\not(?![A-Za-z])|!=|\?|(?<![\d.])\d+\s*\\[lcd]?dots|\d\s*'"
)
NO_SCALAR = re.compile(r"^\s*(?:[(\[{]|\\\{)|\\begin\b|\\(?:pm|cup)(?![A-Za-z])|\\infty.*,")
LOG = re.compile(r"\\log(?!\s*_)")
BELOW = re.compile(r"_\s*\{[^{}]*\}")
TERMS = re.compile(r"(?<![\\A-Za-z])[xyz](?:\^\{?[2-9]|\s*[+-]\s*(?:\d|[a-z](?![a-z])))")
OF_A_FUNCTION = re.compile(r"\\(?:int|lim|sum|prod)|[A-Za-z]\s*\(")
NUMERAL = re.compile(r"\d[\d.,]*")
BASED = re.compile(r"[0-9A-F]+_\{?\d+\}?")
POWER = re.compile(r"(?:[\d)}\]]\s*(?:\^|\*\*)|(?<=!)\s*\^)[\s{(]*(\d+)")
TOWER = re.compile(r"(\d+)\s*(?:\^|\*\*)[\s{(]*(\d+)\s*(?:\^|\*\*)[\s{(]*(\d+)")
FACTORIAL = re.compile(r"(\d+)\s*!|[)}\]!]\s*!|\\[dt]?binom\s*\{?\s*(\d+)|(\d+)\s*\\choose")


class MathEqual:
    """Compares answers with references, both as text. Loading math-verify takes seconds.

    `tolerance`: how far a decimal may be from the reference, relative to the greater of the two; None: it must be the
    reference, rounded or cut off, to at least six places and five digits. A comparison that computes for longer than
    `limit_s` is False; time in which others have the processor does not count. Raises ValueError for a tolerance that
    is none.
    """

    def __init__(self, tolerance: float | None = None, limit_s: float = COMPARE_LIMIT_S) -> None:
        check_tolerance(tolerance)
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
        from sympy import Float
        from sympy.logic.boolalg import BooleanAtom

        # math-verify's time limits are alarms, as ours are: they are switched off, and its warning about that too
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._parse, self._verify, self._float, self._boolean = parse, verify, Float, BooleanAtom
        self._configs = [LatexExtractionConfig(), ExprExtractionConfig()]
        self._tolerance, self._limit_s = tolerance, limit_s

    def __call__(self, truth: str, answer: str) -> bool:
        """Raises ValueError when the reference cannot be read."""
        at_sight = equal_at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        return computed_within(self._limit_s, lambda: self._equal(normalized(truth), normalized(answer)), False)

    def _equal(self, truth: str, answer: str) -> bool:
        at_sight = _at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        parts = split(answer, SEVERAL)
        if len(parts) > 1 and is_one_value(truth):  # forms of one value: 3/4 or 0.75
            return all(self._equal(truth, part) for part in parts)
        sides = split(answer, APPROXIMATELY)
        if len(sides) > 1 and APPROXIMATELY.search(truth) is None:
            return self._are_about(sides) and any(self._equal(truth, side) for side in sides)
        numbers = [number for side in split(answer, EQUALS) if (number := read_number(side)) is not None]
        if not all(equal_numbers(numbers[-1], number, ABOUT) for number in numbers):  # 8 = 7
            return False
        if is_equation(truth) and not EQUALS.search(answer):  # 0 for x^2 - 12 = 0
            return False
        truth, answer = last_side(truth, answer), last_side(answer, truth)
        if (r"\ln" in truth) != (r"\ln" in answer):  # beside it \log is the natural one
            truth, answer = (LOG.sub(r"\\ln", text) for text in (truth, answer))
        at_sight = _at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        gold, pred = self._parsed(truth), self._parsed(answer)
        if not gold:
            raise ValueError(f"ground_truth {truth!r} cannot be read as mathematics")
        one, other = _number(gold), _number(pred)
        if one is not None and other is not None:
            gap, greater = abs(one - other), max(abs(one), abs(other))
            if self._tolerance is not None and any(value[0].atoms(self._float) for value in (gold, pred)):
                return gap <= self._tolerance * greater
            if gap > SMALL * greater:  # math-verify rounds to six places, so that 1/2^99 is 0
                return False
        return self._verify(gold, pred, allow_set_relation_comp=True, timeout_seconds=0)

    def _are_about(self, sides: list[str]) -> bool:
        values = [self._parsed(last_side(side, "")) for side in sides]
        numbers = [number for value in values if (number := _number(value)) is not None]
        return max(numbers) - min(numbers) <= ABOUT * max(map(abs, numbers)) if numbers else True

    def _parsed(self, text: str) -> list[Any]:
        boxed = rf"\boxed{{{text if BOUNDS.search(text) else SEVERAL.sub(', ', text)}}}"
        parsed = self._parse(boxed, extraction_config=self._configs[:1], parsing_timeout=0)
        if any(not isinstance(one, str) for one in parsed) or len(NUMERAL.findall(text)) > 1 or "\\" in text:
            # a product with a matrix is computed; an equation of numbers, which is true or false, has no value
            computed = [one if isinstance(one, str) else one.doit() for one in parsed]
            return [one for one in computed if not isinstance(one, self._boolean)]
        # what is no LaTeX may still hold a number
        return self._parse(boxed, extraction_config=self._configs, parsing_timeout=0)


def check_tolerance(tolerance: float | None) -> None:
    """Raises ValueError."""
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: {tolerance!r} must be a number from 0 to below 1, such as 0.001, or null")


def equal_at_sight(truth: str, answer: str, tolerance: float | None = None) -> bool | None:
    """The verdict where nothing has to be parsed; None where something has."""
    if max(len(truth), len(answer)) > MAX_CHARS:
        return truth.strip() == answer.strip()
    return _at_sight(normalized(truth), normalized(answer), tolerance)


def _at_sight(truth: str, answer: str, tolerance: float | None) -> bool | None:
    if not answer:
        return False
    if same_words(truth, answer):
        return True
    if (modulus := MODULUS.search(answer)) is not None:  # 5 \pmod 7
        other = MODULUS.search(truth)
        if other is not None and other["of"] != modulus["of"]:
            return False
        return _at_sight(MODULUS.sub("", truth), MODULUS.sub("", answer), tolerance)
    numbers = read_number(without_unit(MODULUS.sub("", truth))), read_number(without_unit(answer))
    if numbers[0] is not None and numbers[1] is not None:
        return equal_numbers(numbers[0], numbers[1], tolerance)
    if (numbers[0] is not None and BOUNDS.search(BELOW.sub("", answer))) or (
        BASED.fullmatch(truth) and BASED.fullmatch(answer)
    ):
        return False
    is_hedged = HEDGE.search(answer) is not None and HEDGE.search(truth) is None
    if is_hedged or (is_set(truth) and is_tuple(answer)) or (is_tuple(truth) and is_set(answer)):
        return False
    return False if is_huge(truth) or is_huge(answer) else None


def is_one_value(text: str) -> bool:
    """Whether a text stands for one value, and not for a set, a tuple or a range of them."""
    return len(split(text, SEVERAL)) == 1 and NO_SCALAR.search(text) is None and BOUNDS.search(text) is None


def is_set(text: str) -> bool:
    return text.lstrip().startswith(r"\{")


def is_tuple(text: str) -> bool:
    return text.lstrip().startswith("(") and "," in text and len(split(text, SEVERAL)) == 1


def last_side(text: str, other: str) -> str:
    """The value that a chain of equations claims: its last side, or the first where the last is a name. An equation
    stays one beside another equation, unless both only name a value.

    Examples: "x = 2 + 3 = 5" -> "5", "5 = x" -> "5", ("x + y = 1", "y = 1 - x") -> "x + y = 1"
    """
    sides, others = split(text, EQUALS), split(other, EQUALS)
    if len(sides) < 2 or len(split(text, SEVERAL)) > 1:
        return text
    if len(sides) == len(others) == 2 and not (NAME.fullmatch(sides[0]) and NAME.fullmatch(others[0])):
        return text
    return sides[0] if NAME.fullmatch(sides[-1]) and not NAME.fullmatch(sides[0]) else sides[-1]


def is_equation(text: str) -> bool:
    """Whether it sets a polynomial equal to a number: "x^2 - 12 = 0" and "x + y = 1" do, "f(x) = 2" does not."""
    sides = split(text, EQUALS)
    if len(sides) != 2 or OF_A_FUNCTION.search(sides[0]) or read_number(sides[1]) is None:
        return False
    return TERMS.search(sides[0]) is not None


def reference(truth: str) -> str:
    """The answer inside a ground truth. Examples: "72", r"so \\boxed{72}" and "6 * 12 = 72\n#### 72" all give "72"."""
    boxed = last_boxed(truth)
    if boxed is not None:
        return boxed.strip()
    return truth.rpartition("####")[2].strip().strip("$")


def is_huge(text: str) -> bool:
    """True for powers and factorials that Python would compute for minutes, without a chance to interrupt it.

    Example: "10^{10^{10}}" and "99999!" are, "2^{10}" and "2^{2^3}" are not.
    """
    for _, exponent, top in TOWER.findall(text):
        if len(exponent) > 4 or len(top) > 3 or int(exponent) ** int(top) > MAX_EXPONENT:
            return True
    exponents = [int(exponent[:9]) for exponent in POWER.findall(text)]
    if math.prod(max(1, exponent) for exponent in exponents) > MAX_EXPONENT:
        return True
    return any(int((max(numbers) or "9999")[:9]) > MAX_FACTORIAL for numbers in FACTORIAL.findall(text))


def _number(parsed: list[Any]) -> float | None:
    value: Any = parsed[0] if parsed else None
    try:
        return float(value) if getattr(value, "is_number", False) else None
    except (TypeError, ValueError, OverflowError):
        return None
