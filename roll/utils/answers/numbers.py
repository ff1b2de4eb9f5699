r"""Plain numbers as people and files write them: read exactly, and compared.

5  +5  -.5  5.  1,234.50  1\,000  $72  12 \text{ cm}  1.5e3  1.6 \times 10^{-19}  1/3  \frac{1}{3}  2\frac{1}{2}  50\%
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 2000
MAX_EXPONENT = 4000  # of ten; beyond it a number is compared as text
DECIMALS, DIGITS = 6, 5  # of a rounded number that is as good as the exact one
FLOAT_DIGITS, FLOAT_NOISE = 15, Fraction(1, 10**14)  # a float64 as text, and what arithmetic leaves of it

_AS_ASCII = str.maketrans(
    "\u2212\u2013\uff0d\uff0b\uff05\uff0c\uff0e\u00a0\u2009\u202f" + "".join(chr(0xFF10 + i) for i in range(10)),
    "--" + "-+%,.   " + "0123456789",
)
_WRAPPED = re.compile(
    r"\$\$?((?:[^$\\]|\\.)*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\{([^{}]*)\}"
    r"|\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|boldsymbol|bm|mbox)\s*\{([^{}]*)\}",
    re.DOTALL,
)
_WORDS_INSIDE = (
    r"(?!\s*(?:not|or|and|to|million|billion|trillion|thousand|hundred|dozen|percent)\b)"
    r"[A-Za-z\u00b0\u00b5\u03bc\u00c5\u03a9\u20ac\u00a3\u00a5\u20b9\u00a2/. \\-]*"
)
_NAMED_UNIT = (
    r"(?:sq(?:uare)?\.?\s+)?(?:km|cm|mm|nm|kg|mg|ml|mL|ft|yd|mi|lbs?|oz|kph|mph|bpm|rpm|kW|kJ|MHz|GHz|Hz|USD|EUR|GBP"
    r"|m|g|s|L"
    r"|[Dd]ollars?|[Cc]ents?|[Ee]uros?|degrees?|hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?"
    r"|inch(?:es)?|feet|foot|yards?|miles?|(?:kilo|centi|milli)?(?:met(?:er|re)|gram|lit(?:er|re))s?|units?)"
)
_PER = r"\s*/\s*(?:km|cm|h|hr|hour|s|sec|second|min|minute|day|kg|m|g|L)\b"
_RAISED = r"\s*\^\s*\{?\s*[23]\s*\}?"
_UNIT = re.compile(
    rf"(?:\s|\\[,;:! ]|~)*(?:\\(?:text|textrm|mathrm|operatorname|mbox)\s*\{{{_WORDS_INSIDE}\}}(?:\^\{{?-?\d\}}?)?"
    rf"|{_NAMED_UNIT}(?:{_PER}|(?:{_RAISED})(?:{_PER})?)|{_NAMED_UNIT.replace('|m|g|s|L', '')}"
    r"|\\frac\s*\{\s*\\(?:text|mathrm)\s*\{[a-zA-Z ]+\}\s*\}\s*\{\s*\\(?:text|mathrm)\s*\{[a-zA-Z ]+\}\s*\}|\\Omega"
    r"|(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])|\u00b0)\s*[CF]?|[\u20ac\u00a3\u00a5\u20b9\u00a2])$"
)
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\\$|[$\u20ac\u00a3\u00a5\u20b9])\s*")
_PERCENT = re.compile(r"(?:\s|\\[,;:! ]|~)*(?:\\?%|\\text\s*\{\s*percent\s*\}|percent)$")
_DOTS = re.compile(r"(?<=\.\d{3})(\d*)\s*(?:\.\.\.+|\\[lc]?dots|\u2026)$")
_SPACED = re.compile(r"^([-+]?\d{1,3})((?:(?:\\[,;: ]|\{,\}|~| |['\u2019_])\d{3})+)(?![\d_'])")
_WITH_POINTS = re.compile(r"(?P<whole>[-+]?\d{1,3}(?:\.\d{3})+),(?P<part>\d{1,2})|[-+]?\d{1,3}(?:\.\d{3}){2,}")
"""Points between thousands: 1.234.567 and 1.234,50."""
_AND_SO_ON = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d*)\.(?P<digits>\d{3,})\s*(?:\.\.\.+|\\[lc]?dots|\u2026)\.?")

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d*)?|\.\d+)"
_TEN = r"10\s*(?:\^|\*\*)\s*[{(]?\s*(?P<power>[-+]?\d+)\s*[})]?"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<mantissa>{_DECIMAL})(?:[eE](?P<e>[-+]?\d+)|\s*(?:\\times|\\cdot|\*|[xX\u00d7\u22c5\u00b7])\s*{_TEN})?"
    rf"|{_TEN.replace('power', 'alone')})"
)
_FRACTION = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)(?:(?:\s|\\[,;:! ]|~)+|(?=\\[dt]?frac)))?"
    rf"(?:\\[dt]?frac\s*(?:\{{\s*(?P<a>[-+]?{_DECIMAL})\s*\}}|\s*(?P<b>\d))\s*(?:\{{\s*(?P<c>[-+]?{_DECIMAL})\s*\}}|(?P<d>\d))"
    rf"|(?P<x>{_DECIMAL})\s*/\s*(?P<y>{_DECIMAL}))"
)
_REPEATING = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d*)\.(?P<once>\d*)\\(?:overline|bar|dot)\s*\{?(?P<again>\d+)\}?")


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

    def last_place(self) -> Fraction:
        """The value of its last digit that says something; 0 for a fraction. Examples: 10.82 -> 1/100, 1200 -> 100."""
        if self.decimals is not None:
            return Fraction(1, 10) ** self.decimals
        if self.value.denominator != 1 or not self.value:
            return Fraction(0)
        digits = str(self.value.numerator)
        return Fraction(10) ** (len(digits) - len(digits.rstrip("0")))


def read_number(text: str) -> PlainNumber | None:
    r"""None for what is no plain number. A unit, a currency and a degree sign are left out.

    Examples: "1e-07" -> 1/10000000, r"1.6 \times 10^{-19}" -> 16/10^20, "five" -> None, "4 5" -> None
    """
    if len(text) > MAX_CHARS:
        return None
    text = _unwrapped(text.translate(_AS_ASCII))
    percent = _PERCENT.search(text)
    if percent is not None:
        text = _unwrapped(text[: percent.start()])
    while percent is None and (unit := _UNIT.search(text)) is not None and unit.start():
        text = _unwrapped(text[: unit.start()])
    text = _DOTS.sub(r"\1", _with_period(_CURRENCY.sub(r"\1", text))).replace(r"\!", "").strip()
    text = _SPACED.sub(lambda match: match[1] + "".join(re.findall(r"\d", match[2])), text)
    if (pointed := _WITH_POINTS.fullmatch(text)) is not None:
        text = f"{pointed['whole'] or text}".replace(".", "") + (f".{pointed['part']}" if pointed["part"] else "")
    number = _decimal(text) or _fraction(text) or _repeating(text)
    if number is None or percent is None:
        return number
    return PlainNumber(number.value, number.decimals, number.digits, is_percent=True)


def _unwrapped(text: str) -> str:
    text = text.replace(r"\left", "").replace(r"\right", "").replace(r"\displaystyle", "").strip()
    text = text if text.endswith("...") else text.rstrip(".,;")
    while (inside := _WRAPPED.fullmatch(text)) is not None:
        text = inside[inside.lastindex or 0].strip()
    return text


def _decimal(text: str) -> PlainNumber | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    exponent = match["e"] or match["power"] or match["alone"] or "0"
    if len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    mantissa = (match["mantissa"] or "1").replace(",", "")
    whole, _, part = mantissa.partition(".")
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
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    once, again = match["once"], match["again"]
    value = Fraction(f"{match['whole'] or '0'}.{once or '0'}") + Fraction(
        int(again), (10 ** len(again) - 1) * 10 ** len(once)
    )
    return PlainNumber(-value if match["sign"] == "-" else value)


def _with_period(text: str) -> str:
    r"""Digits that go on, with a bar over what repeats, if something does: "0.1666..." -> r"0.1\overline{6}".

    One digit says so three times, several twice: 0.333... is 1/3, 3.14... is no such number.
    """
    match = _AND_SO_ON.fullmatch(text)
    if match is None:
        return text
    digits = match["digits"]
    for length in range(1, len(digits) // 2 + 1):
        again = digits[-length:]
        if digits.endswith(again * (3 if length == 1 else 2)):
            return rf"{match['sign']}{match['whole']}.{digits[:-length]}\overline{{{again}}}"
    return text


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
