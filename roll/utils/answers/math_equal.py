"""Is an answer mathematically equal to a reference? Plain numbers are read here, all else is parsed by math-verify."""

import logging
import math
import re
from typing import Any

from roll.utils.answers.environments import on_one_line, pieces, same_pieces
from roll.utils.answers.final_answer import last_boxed
from roll.utils.answers.forms import in_one_form
from roll.utils.answers.numbers import PlainNumber, equal_numbers, read_number
from roll.utils.answers.remarks import in_figures, once, without_remarks
from roll.utils.answers.residues import as_residues
from roll.utils.answers.statements import is_one_value, is_set_beside_tuple, names_other_than_one_value, repeats
from roll.utils.answers.text import (
    TEXT,
    alike,
    bounds_joined_by,
    chain,
    is_name,
    logs_alike,
    normalized,
    said_again,
    same_words,
    trimmed,
    without_sizes,
    without_unit,
)
from roll.utils.answers.units import in_one_unit
from roll.utils.timing import computed_within

MAX_ANSWER_CHARS = 2000  # a longer "answer" is no answer, and parsing it would only take time
MAX_DIGITS = 4000  # of a power that is worth computing
COMPARE_LIMIT_S = 5.0  # of CPU time, as the next
CHECK_LIMIT_S = 1.0  # of one part of a chain of equals, such as an integral
ABOUT = 0.05  # how far apart, relatively, the parts of an approximation may be, one of which rounds the other
_EXPONENT = r"\s*(?:\^|\*\*)[\s{(]*(\d+)"
POWER_OF_POWER = re.compile(rf"(?<!\d)(\d+){_EXPONENT}{_EXPONENT}")
POWER = re.compile(rf"(?<!\d)(\d+){_EXPONENT}")
TOWER = re.compile(rf"(?<!\d)\d+(?:{_EXPONENT}){{3,}}")
RAISED = re.compile(rf"[\d)}}\]]{_EXPONENT}")
COMMAND, PRIME = re.compile(r"\\(?!q?quad\b|text|approx)[A-Za-z]"), re.compile(r"(?<=[\w)}])'")
NUMERAL, SUM = re.compile(r"\d[\d.,]*"), re.compile(r"[\d\s.,+*/^()-]*")
BASED = re.compile(r"\$?\(?([0-9A-Fa-f]+)\)?_\s*\{?\(?(?:\\text\{)?(\d+)\}?\)?\}?\$?")
FACTORIAL = re.compile(r"(?<!\d)(\d+)\s*!")
FACTORIAL_OF_MORE = re.compile(
    r"[)}\]!]\s*!(?=.*(?:\d{4}|\^|!))|(?:\d{4}|\^|!).*[)}\]!]\s*!|!\s*[)}\]]+\s*[\^*]", re.DOTALL
)
CHOICE = re.compile(r"\\[dt]?binom\s*\{?\s*(\d+)|(?<!\d)(\d+)\s*\\choose|\d[eE][-+]?(\d+)")


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

        from roll.utils.answers import values as math_values

        # math-verify's time limits are alarms, as ours are: they are switched off, and its warning about that too
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._parse, self._verify, self._values = parse, verify, math_values
        self._configs = [LatexExtractionConfig(), ExprExtractionConfig()]
        self._tolerance, self._limit_s = tolerance, limit_s

    def __call__(self, truth: str, answer: str) -> bool:
        """Raises ValueError when the reference cannot be read."""
        at_sight = equal_at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        truth, answer = prepared(truth, answer)
        if len(parts := said_again(answer)) > 1 and is_one_value(truth):
            return all(self(truth, part) for part in parts)
        return computed_within(self._limit_s, lambda: self._equal(normalized(truth), normalized(answer)), False)

    def _equal(self, truth: str, answer: str) -> bool:
        gold_pieces, answered = pieces(truth), pieces(answer)
        if gold_pieces is not None and answered is not None:
            return same_pieces(gold_pieces, answered, self._equal_parts)
        gold = self._parsed(truth)
        if not gold:
            raise ValueError(f"ground_truth {truth!r} cannot be read as mathematics")
        parts, is_about = chain(answer)
        if not is_one_value(answer) and not (len(parts) == 2 and is_name(parts[0]) and "," in parts[1]):
            parts, is_about = [answer], False
        wanted, _ = chain(truth)
        if len(parts) > 1 and len(wanted) == 1:
            return any(self._same(truth, gold, part) for part in self._claims(parts, is_about))
        if len(parts) > 1 and not self._claims(parts, is_about):
            return False
        if len(parts) == 1 and len(wanted) > 1 and not any(map(is_name, wanted)):  # 3! = 6
            return bool(claims := self._claims(wanted, False)) and self._same(
                claims[0], self._parsed(claims[0]), answer
            )
        if len(parts) == len(wanted) == 2 and "".join(parts[0].split()) == "".join(wanted[0].split()):
            return self._same(wanted[1], self._parsed(wanted[1]), parts[1])
        return self._same(truth, gold, answer)

    def _equal_parts(self, one: str, other: str) -> bool:
        try:
            return self._equal(normalized(one), normalized(other))
        except ValueError:  # a condition in words
            return False

    def _claims(self, parts: list[str], is_about: bool) -> list[str]:
        """Return the values that a chain of equations claims; none if it contradicts itself, which is when two of its
        parts, or an expression and another one in the same symbols, are not equal."""
        if is_name(parts[-1]) and not is_name(parts[0]):
            parts = [*parts[1:], parts[0]]  # 5 = x
        values = [self._value(part) for part in parts]
        last = values[-1]
        claims = [parts[-1]]
        for part, value in zip(parts[:-1], values[:-1], strict=True):
            if value is None or last is None or not _symbols(value) <= _symbols(last):
                continue
            if is_name(part) and _symbols(value) and not re.fullmatch(r"[A-Za-z]", part.strip()):
                continue
            if not self._agree(value, last, is_about):
                return []
            claims += [part] * is_about
        return claims

    def _agree(self, part: Any, last: Any, is_about: bool) -> bool:
        """True as well where it takes too long to say: the last part is what is claimed."""
        check = self._is_about if is_about else self._is_same_value
        return computed_within(CHECK_LIMIT_S, lambda: check(part, last), True)

    def _is_same_value(self, one: Any, other: Any) -> bool:
        is_same = self._values.same(one, other, self._tolerance)
        if is_same is None and not isinstance(one, PlainNumber) and not isinstance(other, PlainNumber):
            is_same = self._verified([one], [other])
        return bool(is_same)

    def _is_about(self, one: Any, other: Any) -> bool:
        numbers = self._values.number_of(one), self._values.number_of(other)
        if numbers[0] is None or numbers[1] is None:
            return True
        (a, _, _), (b, _, _) = numbers
        units = [one.last_place() for one in (one, other) if isinstance(one, PlainNumber)]
        is_rounded = not units or abs(a - b) < max(units) or max(units) == 0
        return is_rounded and abs(a - b) <= ABOUT * max(abs(a), abs(b))

    def _same(self, truth: str, gold: list[Any], answer: str) -> bool:
        at_sight = _at_sight(truth, answer, self._tolerance)
        if at_sight is not None:
            return at_sight
        if len(PRIME.findall(truth)) != len(PRIME.findall(answer)):  # which the parser drops
            return False
        pred = self._parsed(answer)
        values = self._first(truth, gold), self._first(answer, pred)
        if None not in values:
            is_same = self._values.same(*values, self._tolerance)
            if is_same is not None:
                return is_same
        return self._verified(gold, pred)

    def _verified(self, gold: list[Any], pred: list[Any]) -> bool:
        if not self._verify(gold, pred, allow_set_relation_comp=True, timeout_seconds=0):
            return False
        values = [next((one for one in parsed if not isinstance(one, str)), None) for parsed in (gold, pred)]
        return not self._values.differ(*values)

    def _value(self, text: str) -> Any:
        """A PlainNumber, or what math-verify makes of it, None if it is only text."""
        return self._first(text, self._parsed(text))

    def _first(self, text: str, parsed: list[Any]) -> Any:
        number = read_number(text)
        if number is not None:
            return number.hundredth() if number.is_percent else number
        return next((one for one in parsed if not isinstance(one, str)), None)

    def _parsed(self, text: str) -> list[Any]:
        for word in ("or", "and"):  # x < 1 or x > 2
            if len(parts := bounds_joined_by(word, text)) > 1:
                joined = self._values.joined(word, [self._value(part) for part in parts])
                if joined is not None:
                    return [joined]
        boxed = rf"\boxed{{{text}}}"
        parsed = self._parse(boxed, extraction_config=self._configs[:1], parsing_timeout=0)
        if any(not isinstance(one, str) for one in parsed) or (
            len(NUMERAL.findall(text)) > 1 and not SUM.fullmatch(text)
        ):
            return parsed
        if COMMAND.search(TEXT.sub("", without_sizes(text))):  # which the number would lose: \arg 5
            return parsed
        # what is no LaTeX may still hold a number: the last one, so that there must be one only
        return self._parse(boxed, extraction_config=self._configs, parsing_timeout=0)


def check_tolerance(tolerance: float | None) -> None:
    """Raises ValueError."""
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: {tolerance!r} must be a number from 0 to below 1, such as 0.001, or null")


def equal_at_sight(truth: str, answer: str, tolerance: float | None = None) -> bool | None:
    """The verdict where nothing has to be parsed; None where something has. Several forms of one value must all be
    right."""
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    truth, answer = prepared(truth, answer)
    is_equal = _at_sight(truth, answer, tolerance)
    if is_equal or len(parts := said_again(answer)) < 2 or not is_one_value(truth):
        return is_equal
    verdicts = [equal_at_sight(truth, part, tolerance) for part in parts]
    return None if None in verdicts and False not in verdicts else all(verdicts)


def prepared(truth: str, answer: str) -> tuple[str, str]:
    """Both texts in the form in which they are compared: without decoration, with the same logarithms and without a
    common modulus."""
    truth, answer = (on_one_line(trimmed(once(without_remarks(text)))) for text in (truth, answer))
    truth, answer = in_one_form(truth, alike(truth, answer))
    if (amounts := in_one_unit(truth, answer)) is not None:
        truth, answer = amounts
    truth, answer = in_figures(truth), in_figures(answer)
    if read_number(truth) is not None:
        answer = without_unit(answer)
    elif read_number(answer) is not None:
        truth = without_unit(truth)
    return as_residues(*logs_alike(truth, answer))


def _at_sight(truth: str, answer: str, tolerance: float | None) -> bool | None:
    if not answer.strip():
        return False
    if same_words(truth, answer):
        return True
    numbers = read_number(truth), read_number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return equal_numbers(numbers[0], numbers[1], tolerance)
    based = BASED.fullmatch(truth), BASED.fullmatch(answer)
    if based[0] is not None and based[1] is not None:
        return based[0].groups() == based[1].groups()
    if (
        names_other_than_one_value(truth, answer)
        or (repeats(answer) and not repeats(truth))
        or is_set_beside_tuple(truth, answer)
        or is_huge(answer)
        or is_huge(truth)
    ):
        return False
    return None


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
    for base, exponent, top in POWER_OF_POWER.findall(text):
        digits = int(top[:9]) * math.log10(max(int(exponent[:300]), 1))
        if digits > 9 or _digits(base, int(exponent[:9]) ** int(top[:9])) > MAX_DIGITS:
            return True
    if any(_digits(base, int(exponent[:9])) > MAX_DIGITS for base, exponent in POWER.findall(text)):
        return True
    if TOWER.search(text) or FACTORIAL_OF_MORE.search(text):
        return True
    if math.prod(max(1, int(exponent[:9])) for exponent in RAISED.findall(text)) > 100_000:
        return True
    if any(int(next(filter(None, groups))[:9]) > MAX_DIGITS for groups in CHOICE.findall(text)):
        return True
    return any(int(n[:9]) > 1000 for n in FACTORIAL.findall(text))


def _digits(base: str, exponent: int) -> float:
    """Approximate number of digits of base ** exponent."""
    return exponent * math.log10(max(int(base[:300]), 1)) * max(1, len(base) / 300)


def _symbols(value: Any) -> frozenset[Any]:
    """Symbols of a value, including functions without a definition: f(1) + f(2) has one."""
    if isinstance(value, PlainNumber) or not hasattr(value, "atoms"):
        return frozenset()
    from sympy.core.function import AppliedUndef

    return frozenset(getattr(value, "free_symbols", ())) | frozenset(value.atoms(AppliedUndef))
