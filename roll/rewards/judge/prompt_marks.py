"""The marks of a prompt around what is judged. What stands between them cannot close them: a mark that it holds is made
longer in the prompt until it does not, so the same texts always get the same marks."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)(?:\s[^<>]*)?>")
_LIKE_A_TAG = re.compile(r"<\s*[/\\]?\s*([a-z][\w.-]*)", re.IGNORECASE)
_BRACKET = r"\[+[^\[\]\n]{1,80}\]+|<\|[^|<>\n]{1,80}\|>|<<+[^<>\n]{1,80}>>+|\{+[^{}\n]{1,80}\}+"
_RUN = r"(?P<run>([`~=*#_+\"'-])\2{2,})"
_OPENS = re.compile(rf"(?:{_BRACKET}|{_RUN}[ \t]*\w*)\Z")
_CLOSES = re.compile(rf"{_BRACKET}|{_RUN}")

Piece = tuple[str, str | None]
"""Plain text and the value behind it."""


def guarded(pieces: Sequence[Piece]) -> str:
    """The prompt. `pieces` without a value behind them end it."""
    values = [_normalized(value) for _, value in pieces if value is not None]
    texts = [text for text, _ in pieces]
    for name in _enclosing_tags(pieces):
        longer = _longer_tag(name, values)
        texts = [_renamed(text, name, longer) for text in texts] if longer != name else texts
    for mark in _marks_beside(pieces):
        longer = _longer_mark(mark, values)
        texts = [_replaced(text, mark, longer) for text in texts] if longer != mark else texts
    return "".join(text + (value or "") for text, (_, value) in zip(texts, pieces, strict=True))


def _normalized(text: str) -> str:
    """The visible text: without signs that take no room, such as a zero-width space, and with wide letters as plain
    ones."""
    shown = (sign for sign in text if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFKC", "".join(shown))


def _enclosing_tags(pieces: Sequence[Piece]) -> list[str]:
    """Names of the tags that are open where a value stands, and are closed behind it."""
    open_tags: list[tuple[str, bool]] = []  # and whether a value came since
    tags: dict[str, None] = {}
    for text, value in pieces:
        for tag in _TAG.finditer(text):
            if not tag[1]:
                open_tags.append((tag[2], False))
                continue
            places = [place for place, (name, _) in enumerate(open_tags) if name == tag[2]]
            if places:
                if open_tags[places[-1]][1]:
                    tags[tag[2]] = None
                del open_tags[places[-1] :]
        if value is not None:
            open_tags = [(name, True) for name, _ in open_tags]
    return list(tags)


def _longer_tag(name: str, values: Sequence[str]) -> str:
    taken = {tag.lower() for value in values for tag in _LIKE_A_TAG.findall(value)}
    return next(longer for longer in _longer(name, "_") if longer.lower() not in taken)


def _renamed(text: str, name: str, longer: str) -> str:
    return re.sub(rf"(</?){re.escape(name)}(?=[\s>])", rf"\g<1>{longer}", text)


def _marks_beside(pieces: Sequence[Piece]) -> list[str]:
    """Marks of other kinds that stand right before a value, or right behind one: [END], a fence, a line of ===."""
    marks: dict[str, None] = {}
    for (text, value), (after, _) in itertools.pairwise([*pieces, ("", None)]):
        if value is None:
            continue
        for match in (_OPENS.search(text.rstrip()), _CLOSES.match(after.lstrip())):
            if match is not None:
                marks[match["run"] or match[0]] = None
    return sorted(marks, key=len, reverse=True)


def _longer_mark(mark: str, values: Sequence[str]) -> str:
    if mark == mark[0] * len(mark):
        runs = (run for value in values for run in re.findall(rf"{re.escape(mark[0])}+", value))
        most = max(map(len, runs), default=0)
        return mark if most < len(mark) else mark[0] * (most + 1)
    body = mark.rstrip("]>})|")
    spelled = re.compile(rf"{re.escape(_spelled(body))}(?:\d+)?")
    taken = {sign for value in values for sign in spelled.findall(_spelled(value))}
    return next(longer + mark[len(body) :] for longer in _longer(body, " ") if _spelled(longer) not in taken)


def _replaced(text: str, mark: str, longer: str) -> str:
    """A run of signs is not part of a longer one."""
    if mark != mark[0] * len(mark):
        return text.replace(mark, longer)
    sign = re.escape(mark[0])
    return re.sub(rf"(?<!{sign}){re.escape(mark)}(?!{sign})", longer, text)


def _spelled(text: str) -> str:
    """The text without case and white space, in which a reader would see no difference."""
    return re.sub(r"\s+", "", text).casefold()


def _longer(name: str, between: str) -> Iterator[str]:
    """Example: answer, answer_2, answer_3 ..."""
    yield name
    yield from (f"{name}{between}{number}" for number in itertools.count(2))
