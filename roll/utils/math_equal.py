"""Is an answer mathematically equal to a reference? Decided by math-verify."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

from roll.utils.answers import NUMBER, last_boxed

MAX_ANSWER_CHARS = 2000  # a longer "answer" is no answer, and parsing it would only take time
MAX_DIGITS = 4000  # of a power that is worth computing
POWER_OF_POWER = re.compile(r"(\d+)\s*(?:\^|\*\*)[\s{(]*(\d+)\s*(?:\^|\*\*)[\s{(]*(\d+)")
POWER = re.compile(r"(\d+)\s*(?:\^|\*\*)[\s{(]*(\d+)")
FACTORIAL = re.compile(r"(\d+)\s*!")


class MathEqual:
    """Compares answers with references, both as text. Loading math-verify takes seconds."""

    def __init__(self) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

        # math-verify's time limits are alarms, as ours are: they are switched off, and its warning about that too
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._parse = parse
        self._verify = verify
        self._configs = [LatexExtractionConfig(), ExprExtractionConfig()]

    def __call__(self, truth: str, answer: str) -> bool:
        """Raises ValueError when the reference cannot be read, or both are too large to compute."""
        if not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
            return False
        if answer.strip() == truth:
            return True
        if is_huge(answer):
            if is_huge(truth):
                raise ValueError(f"{answer!r} and {truth!r} are too large to compare")
            return False
        gold = self._parsed(truth)
        if not gold:
            raise ValueError(f"ground_truth {truth!r} cannot be read as mathematics")
        return bool(self._verify(gold, self._parsed(answer), timeout_seconds=0))

    def _parsed(self, answer: str) -> list[Any]:
        """What math-verify may compare. A number goes in as plain text, since `%` begins a comment in LaTeX."""
        number = answer.replace("\\%", "%").strip().strip("$").strip()
        text = number if NUMBER.fullmatch(number) else rf"\boxed{{{answer}}}"
        return self._parse(text, extraction_config=self._configs, parsing_timeout=0)


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
    return any(int(n[:9]) > 1000 for n in FACTORIAL.findall(text))


def _digits(base: str, exponent: int) -> float:
    """Of base ** exponent, about."""
    return exponent * math.log10(max(int(base[:300]), 1)) * max(1, len(base) / 300)
