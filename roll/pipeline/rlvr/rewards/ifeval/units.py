"""What instructions count: words, sentences, paragraphs; in which language a text is. All without downloads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from roll.utils.imports import resolve

WORD = re.compile(r"\w+")
JOINED_WORD = re.compile(r"[^\W_]+(?:['\u2019.&-][^\W_]+)*")
SENTENCE_END = re.compile(
    '(?<![.!?\u2026])[.!?\u2026]++["\'\u201d\u2019)\\]*_]*(?=\\s|$)|[\u3002\uff01\uff1f\u0964\u06d4]+["\u201d\u300d\u300f)]*'
)
LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$")
NEAR = 100  # characters around a mark that decide whether it ends a sentence
ITEM_NUMBER = re.compile(r"[\s(*_#]*(?:\d+|[A-Za-z])")
_TITLES = "mr mrs ms dr prof rev gen sen rep gov capt sgt hon messrs mme mt ft vs cf viz e.g i.e approx dept"
NEVER_LAST = frozenset(_TITLES.split())
"""Abbreviations with something behind them."""
_COUNTED = "no nos vol vols p pp fig figs ch sec art eq"
BEFORE_NUMBERS = frozenset(_COUNTED.split())
"""Abbreviations where a number is behind them."""
_SHORT = (
    "etc inc ltd co corp bros jr sr st ed est a.m p.m u.s u.k u.n e.u d.c ph.d m.d b.a m.a b.sc m.sc b.c a.d al jan "
    "feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs fri sat sun"
)
SELDOM_LAST = frozenset(_SHORT.split())
"""Abbreviations that end a sentence only before a word of STARTERS, as initials do."""
_STARTERS = (
    "the a an this that these those it he she they we i you there here but and or so yet if when while after before "
    "in on at for to from with by as his her its their our my your however then now what who where why how no yes "
    "although because since"
)
STARTERS = frozenset(_STARTERS.split())
DIVIDER = re.compile(r"(?:^|(?<=\s))\* ?\* ?\*(?=\s|$)")
BLANK_LINE = re.compile(r"\n[ \t]*\n")


def count_words(text: str) -> int:
    r"""Runs of letters, digits and _ (`\w+`), as in the reference: "don't" is two, a Chinese clause is one."""
    return len(WORD.findall(text))


def count_capital_words(text: str) -> int:
    """Words with letters, none of them small. Example: "NASA, the U.S. and I: DON'T" has 4."""
    return sum(word.isupper() for word in JOINED_WORD.findall(text))


def count_sentences(text: str) -> int:
    """Stretches with a letter or digit up to . ! ? or an ellipsis with white space behind it, or to such a mark of
    Chinese, Hindi or Urdu. A dot ends none after an abbreviation, an initial or the number of a list's item, nor before
    a small letter. A line break alone ends none.

    Example: "Dr. Smith came at 5 p.m. today. Why? He had 3.5 hours..." has 3.
    """
    count, start = 0, 0
    for match in SENTENCE_END.finditer(text):
        begin = max(0, match.start() - NEAR)
        line = text[text.rfind("\n", begin, match.start()) + 1 or begin : match.start()]
        if _ends(line, match.group(), text[match.end() : match.end() + NEAR]):
            count += WORD.search(text[start : match.start()]) is not None
            start = match.end()
    return count + (WORD.search(text[start:]) is not None)


def _ends(line: str, mark: str, after: str) -> bool:
    """Whether a sentence ends at a mark. `line`: what is before it on its line."""
    mark = mark.rstrip("\"'\u201d\u2019)]*_")
    following = WORD.search(after)
    if set(mark) - {".", "\u2026"} or following is None:
        return True
    if after[: following.end()].lstrip(" \t\n\"'\u201c\u2018([*_")[:1].islower():
        return False
    return mark != "." or not _abbreviates(line, following.group())


def _abbreviates(line: str, following: str) -> bool:
    """Whether a dot belongs to what is before it."""
    last = LAST_WORD.search(line)
    word = last.group() if last is not None else ""
    if ITEM_NUMBER.fullmatch(line) or word.lower() in NEVER_LAST:
        return True
    if word.lower() in BEFORE_NUMBERS:
        return following[0].isdigit()
    is_initial = len(word) == 1 and word.isupper()
    return (is_initial or word.lower() in SELDOM_LAST) and following.lower() not in STARTERS


def divided(text: str) -> list[str] | None:
    """The paragraphs between markdown dividers (`***` or `* * *`, with white space around them). An empty one at either
    end is none; None if there is an empty one in the middle."""
    return trimmed(DIVIDER.split(text))


def trimmed(pieces: list[str]) -> list[str] | None:
    """Without empty ones at either end, stripped; None if one in the middle is empty."""
    found = [piece.strip() for piece in pieces]
    first = 1 if found and not found[0] else 0
    last = len(found) - (1 if len(found) > first and not found[-1] else 0)
    return found[first:last] if all(found[first:last]) else None


def blocks(text: str) -> list[str]:
    """The paragraphs between empty lines, without empty ones."""
    return [piece.strip() for piece in BLANK_LINE.split(text) if piece.strip()]


def is_in_language(text: str, code: str) -> bool:
    """Whether py3langid takes a text for one in the language of an ISO 639-1 code ("zh-cn" is "zh"). It is a fixed
    naive Bayes classifier: the same text always gets the same verdict."""
    classify = cast(Callable[[str], tuple[str, float]], resolve("py3langid:classify"))
    return classify(text.lower())[0] == code.lower().partition("-")[0]


def holds(count: int, relation: str, wanted: int) -> bool:
    """Raises ValueError for a relation that is none. `around` is within a tenth, but at least 1."""
    match relation:
        case "at least":
            return count >= wanted
        case "less than":
            return count < wanted
        case "at most":
            return count <= wanted
        case "more than":
            return count > wanted
        case "exactly":
            return count == wanted
        case "around":
            return abs(count - wanted) <= max(1, round(wanted / 10))
    raise ValueError(f"{relation!r} is no relation: at least, at most, less than, more than, exactly, around")
