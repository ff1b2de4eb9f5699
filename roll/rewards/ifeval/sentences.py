"""Sentences as NLTK's English Punkt counts them (Kiss and Strunk 2006, Computational Linguistics 32:4), without NLTK
and without its data.

The procedure is Punkt's: where a sentence may end, which tokens stand around the mark, what an abbreviation, an
ellipsis, an initial or a number before it changes, and that closing quotes and brackets belong to what is before them.
Its trained tables (of the Wall Street Journal: abbreviations, and how words are spelled where) are replaced by a rule,
that letters with points between them abbreviate, and by lists of our own: of abbreviations, of words that begin
sentences, and of words that are seldom capitalized within one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_NO_WORD = r"[)\";}\]*:@'({\[!?]"
_POTENTIAL_END = re.compile(rf"[.?!](?=(?P<after>{_NO_WORD}|\s+(?P<following>\S+)))")
_SEVERAL = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_TOKEN = re.compile(
    rf"{_SEVERAL}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{_NO_WORD}|{_SEVERAL}|,(?=$|\s|{_NO_WORD}|{_SEVERAL}))|\S"
)
_CLOSING = re.compile(r"[\"')\]}]+?(?:\s+|(?=--)|$)")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_INITIAL = re.compile(r"[^\W\d]\.")
_SPACE = re.compile(r"[ \t\n\r\x0b\x0c]")
_MARKS = frozenset(";:,.!?")
_ENDS = frozenset(".?!")
_TITLES = "mr mrs ms messrs dr prof sr jr st rev hon gen col maj lt capt adm sen rep reps gov ph.d"
_FIRMS = "inc ltd co corp bros cos cie"
_TIMES = "jan feb sep sept oct nov dec tues wed fri yr"
_STATES = (
    "ala ariz ark calif colo conn del fla ga ill ind kan ky md mich minn miss mo mont neb nev okla ore pa tenn tex va "
    "vt wash wis wyo w.va"
)
_OTHERS = "vs ave blvd ft mt ok chg"
ABBREVIATIONS = frozenset(" ".join((_TITLES, _FIRMS, _TIMES, _STATES, _OTHERS)).split())
_LETTERS = re.compile(r"[^\W\d_](\.[^\W\d_])+")  # U.S, a.m, J.P
_WORDS_ALL_THE_SAME = frozenset(("a", "i", "e.g", "i.e"))  # Punkt ends sentences behind these, and behind etc and no
_STARTERS = (
    "the he she it they we you i this that these those there if when while since although though however moreover "
    "nevertheless nonetheless meanwhile indeed instead separately similarly thus so yet but and nor most many some "
    "both among under in despite even"
)
STARTERS = frozenset(_STARTERS.split())
"""Words that begin a sentence also behind an abbreviation."""
_SMALL = (
    "her your here nor so yet without above along behind beneath between beyond except inside into onto through "
    "throughout upon within were being does yes either neither such same very always sometimes still already soon "
    "tomorrow yesterday whom which unless though whereas whether therefore thus hence moreover furthermore finally "
    "instead indeed otherwise please try remember consider choose ask think someone nothing program question number "
    "mother fact lot right eye friend hour member car team minute idea body door person result morning girl guy moment "
    "teacher"
)
SELDOM_CAPITALIZED = frozenset(_SMALL.split())
_COMMON = (
    "a an we you its our my their those or for of to on at by from with about across after against around as before "
    "during near off out outside over past toward until up is are was be do did have has had can could will would "
    "should may might must not no all each every any much more few several other another own only just also too now "
    "second third then once again never often usually first next last one two three who what where why how because "
    "than like well perhaps maybe let make use add keep take get go see read write find know everyone people time"
)
COMMON = frozenset(_COMMON.split())
"""Words that are no names, capitalized or not."""


@dataclass
class _Token:
    text: str
    ends: bool = False  # the sentence
    abbreviates: bool = False

    @property
    def kind(self) -> str:
        lower = self.text.lower()
        if _NUMBER.fullmatch(lower):
            return "##number##"
        return lower[:-1] if len(lower) > 1 and lower.endswith(".") else lower


def count_sentences(text: str) -> int:
    """Example: "Dr. Smith came at 5 p.m. today. Why? He had 3.5 hours." has 3, "1. One\\n2. Two" has 3."""
    breaks = list(_breaks(text))
    starts, ends = [0, *(start for _, start in breaks)], [*(end for end, _ in breaks), len(text.rstrip())]
    count, moved = 0, 0
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        is_last = number == len(breaks)
        closing = None if is_last else _CLOSING.match(text[starts[number + 1] : ends[number + 1]])
        count += closing is not None or start + moved < end
        moved = 0 if closing is None else closing.end()
    return count


def _breaks(text: str) -> Iterator[tuple[int, int]]:
    """Positions (end of a sentence, start of the next)."""
    for match, context in _contexts(text):
        if _has_break(context):
            following = match.start("following")
            yield match.end(), match.end() if following < 0 else following


def _contexts(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Marks that may end a sentence, with the word before each and what follows. Of several marks at one word the last
    counts."""
    previous: re.Match[str] | None = None
    begin = end = 0  # of the word before the previous mark
    for match in _POTENTIAL_END.finditer(text):
        blanks = list(_SPACE.finditer(text, end, match.start()))
        word = blanks[-1].end() if blanks and blanks[-1].start() > end else begin
        if previous is not None and end <= word:
            yield previous, text[begin:end] + previous[0] + previous["after"]
        previous, begin, end = match, word, match.start()
    if previous is not None:
        yield previous, text[begin:end] + previous[0] + previous["after"]


def _has_break(context: str) -> bool:
    tokens = [_Token(match) for match in _TOKEN.findall(context)]
    for token in tokens:
        _annotate(token)
    for token, following in pairwise(tokens):
        if token.text.endswith("."):
            _revise(token, following)
    return any(token.ends for token in tokens[:-1])


def _annotate(token: _Token) -> None:
    """Annotates a token by its own text only."""
    if token.text in _ENDS:
        token.ends = True
    elif token.text.endswith(".") and not token.text.endswith(".."):
        word = token.text[:-1].lower()
        token.abbreviates = _is_abbreviation(word) or _is_abbreviation(word.rpartition("-")[2])
        token.ends = not token.abbreviates


def _is_abbreviation(word: str) -> bool:
    return word in ABBREVIATIONS or (_LETTERS.fullmatch(word) is not None and word not in _WORDS_ALL_THE_SAME)


def _revise(token: _Token, following: _Token) -> None:
    """Revises a token's annotation by the token behind it."""
    word, is_capital = following.kind, following.text[:1].isupper()
    begins = is_capital and word in SELDOM_CAPITALIZED
    is_initial = _INITIAL.fullmatch(token.text) is not None
    if (token.abbreviates or token.text.endswith("..")) and not is_initial:
        token.ends = begins or (is_capital and word in STARTERS)
    elif is_initial or token.kind == "##number##":
        continues = following.text in _MARKS or following.text[:1].islower()
        is_name = is_initial and is_capital and word not in STARTERS | SELDOM_CAPITALIZED | COMMON
        if continues or is_name:
            token.ends = False
