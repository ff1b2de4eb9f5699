"""What instructions count: words, words in capitals; in which language a text is. All without downloads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from roll.utils.imports import resolve

WORD = re.compile(r"\w+")
_BETWEEN_TOKENS = re.compile(r"[\s;@#$%&?!*\[\](){}<>\"`«»“”„‘’–—]|--|\.{2,}|''|[:,](?!\d)")
_SUFFIXED = re.compile(r"(.*[^'])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)")
_IN_TWO = re.compile(
    r"\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b|\b(more)('n)\b"
    r"|\b(wan)(na)$|('t)(is)\b|('t)(was)\b",
    re.IGNORECASE,
)


def count_words(text: str) -> int:
    r"""Runs of letters, digits and _ (`\w+`), as NLTK's RegexpTokenizer: "don't" is two, a Chinese clause is one."""
    return len(WORD.findall(text))


def count_capital_words(text: str) -> int:
    """Tokens of the Penn Treebank's kind, as of NLTK's word_tokenize, that have letters and none of them small. A
    hyphen, a dot or a slash joins, an apostrophe divides.

    Example: "NASA, the U.S. and I: DON'T" has NASA, U.S., I, DO, N'T: 5.
    """
    return sum(token.isupper() for word in _BETWEEN_TOKENS.split(text) for token in _tokens(word))


def _tokens(word: str) -> list[str]:
    match = _SUFFIXED.fullmatch(word)
    parts = [word] if match is None else [match[1], match[2]]
    return [piece for part in parts for piece in _IN_TWO.sub(_with_a_space, part).split()]


def _with_a_space(match: re.Match[str]) -> str:
    return " ".join(part for part in match.groups() if part)


def is_in_language(text: str, code: str) -> bool:
    """Whether py3langid takes a text for one in the language of an ISO 639-1 code ("zh-cn" is "zh"). It is a fixed
    naive Bayes classifier: the same text always gets the same verdict. A text without a letter is in any language."""
    if not any(map(str.isalpha, text)):
        return True
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
