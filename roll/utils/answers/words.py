"""Numbers in words: "six dozen", "seventy-two", "2.5 million"."""

from __future__ import annotations

import re
from fractions import Fraction

from roll.utils.answers.numbers import read_number
from roll.utils.answers.text import TEXT

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {
    **{word: n for n, word in enumerate(_ONES.split())},
    **{word: 10 * n for n, word in enumerate(_TENS.split(), 2)},
    "a": 1,
}
_TIMES = {"dozen": 12, "dozens": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_POWERS = {"squared": 2, "cubed": 3}
_MINUS = re.compile(r"\s*(?:negative|minus)\s+", re.IGNORECASE)


def number_in_words(text: str) -> Fraction | None:
    """None for what is no number. Examples: "six dozen" -> 72, "seventy-two" -> 72, "6 dozen" -> 72, "12" -> 12."""
    words = re.findall(r"[^\s-]+|(?<!\S)-\S+", text.strip(" $.*").lower())
    if not words or len(words) > 12:
        return None
    total, part = Fraction(0), None
    for word in words:
        if word == "and" and part is not None:
            continue
        if word in _POWERS and part is not None:
            part **= _POWERS[word]
        elif word in _TIMES and part is not None:
            part *= _TIMES[word]
            if _TIMES[word] >= 1000:
                total, part = total + part, Fraction(0)
        elif word in _SMALL:
            part = (part or 0) + Fraction(_SMALL[word])
        elif part is None and (number := read_number(word)) is not None:
            part = number.hundredth().value if number.is_percent else number.value
        else:
            return None
    return total + (part or 0) if part is not None else None


def in_figures(text: str) -> str:
    """A number in words, or with a word of magnitude, as a number. Examples: "four" -> "4", "2.5 million" ->
    "2500000"."""
    plain = TEXT.sub(r" \1 ", text)
    if len(plain) > 80 or not re.search("[A-Za-z]{3}", plain) or re.search(r"percent", plain, re.IGNORECASE):
        return text
    sign, plain = ("-", plain[len(minus[0]) :]) if (minus := _MINUS.match(plain)) else ("", plain)
    value = number_in_words(plain)
    return text if value is None else f"{sign}{value}"
