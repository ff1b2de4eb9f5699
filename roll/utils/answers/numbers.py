r"""Plain numbers as people and files write them: read exactly, and compared.

5  +5  -.5  5.  1,234.50  1\,000  $72  1.5e3  1.6 \times 10^{-19}  1/3  \frac{1}{3}  2\frac{1}{2}  50\%
5 million  0.1\overline{6}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 2000
MAX_EXPONENT = 4000  # of ten; beyond it a number is compared as text
DECIMALS, DIGITS = 6, 5  # of a rounded number that is as good as the exact one
FLOAT_DIGITS, FLOAT_NOISE = 15, Fraction(1, 10**14)  # a float64 as text, and what arithmetic leaves of it

_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|[\u20ac\u00a3\u00a5\u20b9])\s*")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|percent)$")
_SPACED = re.compile(r"^([-+]?\d{1,3})((?:(?:\{,\}|,| )\d{3})+)(?!\d)")
_SCALE = re.compile(r"(?<=\d)\s*(hundred|thousand|million|billion|trillion)$")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))")
_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<mantissa>{_DECIMAL})(?:[eE](?P<e>[-+]?\d+)"
    r"|\s*(?:\\times|\\cdot|\*|[xX])\s*10\s*(?:\^|\*\*)\s*[{(]?\s*(?P<power>[-+]?\d+)\s*[})]?)?"
    r"|10\s*(?:\^|\*\*)\s*[{(]?\s*(?P<alone>[-+]?\d+)\s*[})]?)"
)
_FRACTION = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)(?:\s+|(?=\\frac)))?"
    rf"(?:\\frac\s*(?:\{{\s*(?P<a>[-+]?{_DECIMAL})\s*\}}|(?P<b>\d))\s*(?:\{{\s*(?P<c>[-+]?{_DECIMAL})\s*\}}|(?P<d>\d))"
    rf"|(?P<x>{_DECIMAL})\s*/\s*(?P<y>{_DECIMAL}))"
)


@dataclass(frozen=True)
class PlainNumber:
    """A number as written. `decimals` and `digits`, places after the point and significant digits, are those of a
    decimal; a whole number or a fraction is exact and has no `decimals`."""

    value: Fraction
    decimals: int | None = None
    digits: int = 0
    is_percent: bool = False

    def hundredth(self) -> PlainNumber:
        decimals = None if self.decimals is None else self.decimals + 2
        return PlainNumber(self.value / 100, decimals, self.digits)


def read_number(text: str) -> PlainNumber | None:
    r"""Read a number without a unit; None for what is no plain number.

    Examples: "1e-07" -> 1/10000000, r"1.6 \times 10^{-19}" -> 16/10^20, "five" -> None, "4 5" -> None
    """
    if len(text) > MAX_CHARS:
        return None
    percent = _PERCENT.search(text)
    text = text if percent is None else text[: percent.start()].strip()
    text = _CURRENCY.sub(r"\1", text)
    text = _SPACED.sub(lambda match: match[1] + re.sub(r"\D", "", match[2]), text)
    text = _SCALE.sub(lambda match: f"e{_ZEROS[match[1]]}", text)
    number = _decimal(text) or _fraction(text) or _repeating(text)
    if number is None or percent is None:
        return number
    return PlainNumber(number.value, number.decimals, number.digits, is_percent=True)


def _decimal(text: str) -> PlainNumber | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    exponent = match["e"] or match["power"] or match["alone"] or "0"
    if len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    whole, _, part = (match["mantissa"] or "1").partition(".")
    value = Fraction(f"{whole or '0'}.{part or '0'}") * Fraction(10) ** int(exponent)
    value = -value if match["sign"] == "-" else value
    if not part and int(exponent) >= 0 and not match["e"]:
        return PlainNumber(value)
    decimals = None if match["alone"] else len(part) - int(exponent)
    return PlainNumber(value, decimals, len((whole + part).lstrip("0")))


def _fraction(text: str) -> PlainNumber | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    over, under = match["a"] or match["b"] or match["x"], match["c"] or match["d"] or match["y"]
    top, bottom = _decimal(over), _decimal(under)
    if top is None or bottom is None or bottom.value == 0:
        return None
    value = top.value / bottom.value
    if match["whole"] is not None:
        if not 0 < value < 1 or "." in over + under:  # 2 3/2 is no mixed number
            return None
        value += int(match["whole"])
    return PlainNumber(-value if match["sign"] == "-" else value)


def _repeating(text: str) -> PlainNumber | None:
    r"""Example: r"0.1\overline{6}" is 1/6."""
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    before, again = f"0{match[2]}{match[3]}", match[4] or match[5]
    value = Fraction(int(before + again) - int(before), 10 ** len(match[3]) * (10 ** len(again) - 1))
    return PlainNumber(-value if match[1] == "-" else value)


def equal_numbers(truth: PlainNumber, answer: PlainNumber, tolerance: float | None = None) -> bool:
    """A percent sign counts as hundredths beside a number below 1, and as a unit beside one of 1 or more; a ground
    truth in percent may be answered in either way.

    Examples: 5% is 5 and 0.05, 50% is 0.5, 500% is not 5, 0.5% is not 0.5.
    """
    if truth.is_percent == answer.is_percent:
        return agree(truth, answer, tolerance)
    percent, plain = (truth, answer) if truth.is_percent else (answer, truth)
    is_part = abs(plain.value) < 1 or (truth.is_percent and abs(plain.value) == 1)
    if is_part and agree(percent.hundredth(), plain, tolerance):
        return True
    return (truth.is_percent or not is_part) and agree(percent, plain, tolerance)


def agree(one: PlainNumber, other: PlainNumber, tolerance: float | None = None) -> bool:
    """Whole numbers and fractions are equal or not. A decimal is as good as the number that it is, rounded or cut off,
    from `DECIMALS` places and `DIGITS` significant digits on; as is what float64 arithmetic makes of it. With a
    `tolerance` two numbers, one of which is a decimal, may be so far apart instead, relative to the greater."""
    if one.value == other.value:
        return True
    decimals = [number for number in (one, other) if number.decimals is not None]
    if not decimals:
        return False
    gap, greater = abs(one.value - other.value), max(abs(one.value), abs(other.value))
    if tolerance is not None:
        return gap <= Fraction(tolerance) * greater
    if max(number.digits for number in decimals) >= FLOAT_DIGITS and gap <= FLOAT_NOISE * greater:
        return True
    shorter = min(decimals, key=lambda number: number.decimals or 0)
    places = shorter.decimals or 0
    return places >= DECIMALS and shorter.digits >= DIGITS and gap < Fraction(1, 10**places)
