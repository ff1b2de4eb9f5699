"""Is this what was expected? Asked outside the sandbox, of what came out of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|[0-9]*\.[0-9]+|[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,4})")
TOLERANCE = 1e-6  # relative, and absolute near zero


def same_output(got: str, expected: str) -> bool:
    """Lines are compared without the space at their ends and without empty lines at the end; where they differ, words
    are. A number that is expected with a fraction or an exponent may be off by 1e-6, a whole one may be written with
    them: 2.0 is 2, and 2.000001 is not."""
    if _lines(got) == _lines(expected):
        return True
    words, wanted = got.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return lines


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if WHOLE.fullmatch(expected):
        return NUMBER.fullmatch(got) is not None and Decimal(got) == Decimal(expected)
    if not any(mark in expected for mark in ".eE"):
        return False
    try:
        return _close(float(got), float(expected))
    except ValueError:
        return False


def same_value(got: object, expected: object) -> bool:
    """Equal as JSON has it: tuples are lists, keys of mappings are texts, floats may be off by 1e-6; a number is no
    truth value."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        ours, theirs = _by_text(got), _by_text(expected)
        return ours.keys() == theirs.keys() and all(same_value(ours[key], theirs[key]) for key in ours)
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, float) or isinstance(expected, float):
        return isinstance(got, int | float) and isinstance(expected, int | float) and _close_numbers(got, expected)
    return type(got) is type(expected) and got == expected


def _by_text(values: Mapping[object, object]) -> dict[str, object]:
    return {str(key): value for key, value in values.items()}


def _close_numbers(got: float, expected: float) -> bool:
    try:
        return _close(float(got), float(expected))
    except OverflowError:  # an integer that no float holds
        return False


def _close(got: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(got)
    return math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
