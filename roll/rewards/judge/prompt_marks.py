"""The marks of a prompt around what is judged. What stands between them cannot close them: a mark that it holds is made
longer in the prompt until it does not, so the same texts always get the same marks."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)(?:\s[^<>]*)?>")
_LIKE_A_TAG = re.compile(r"<[^\w<>]{0,20}([a-z][\w.-]*)", re.IGNORECASE)
_LOOKS_LIKE = str.maketrans(  # signs of other alphabets: the Latin letter or the bracket that they look like
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u0432\u043d\u043c\u0442"
    "\u043a\u0433\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0423\u0406\u0405"
    "\u03b1\u03b5\u03bf\u03c1\u03b9\u03ba\u03bd\u03c5\u03c7\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f"
    "\u03a1\u03a4\u03a7\u03a5\u0396\u0131\u0251\u0261\u0280\u0274\u1d00\u1d07\u1d21\ua731"
    "\u2039\u203a\u3008\u3009\u27e8\u27e9\u276e\u276f\u2770\u2771\u02c2\u02c3\u227a\u227b\u1438\u1433\u300a\u300b"
    "\u00ab\u00bb\u2044\u2215\u29f8\u2571\u27cb\u2223\u2502\u01c0\u2758",
    "aeopcyxijsdqwhbhmtkrABEKMHOPCTXYISaeopiknuxABEHIKMNOPTXYZiagrnaews<><><><><><><><><><>/////||||",
)
_WITHOUT_INK = "\u034f\u115f\u1160\u3164\u2800"  # they show nothing, and are no format signs
_BRACKET = r"\[+[^\[\]\n]{1,80}\]+|<\|[^|<>\n]{1,80}\|>|<<+[^<>\n]{1,80}>>+|\{+[^{}\n]{1,80}\}+"
_RUN = r"(?P<run>([`~=*#_+\"'-])\2{2,})"
_OPENS = re.compile(rf"(?:{_BRACKET}|{_RUN}[ \t]*\w*)\Z")
_CLOSES = re.compile(rf"{_BRACKET}|{_RUN}")

_LONGEST_NUMBER = 12  # of signs of a tag behind its name
_CONTROL = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,80}[|\uff5c]>|</?s>|<(?:bos|eos|(?:start|end)_of_turn)>|\[/?INST\]|<</?SYS>>",
    re.IGNORECASE,
)

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
    """The text as a reader sees it: without accents and signs that take no room, such as a zero-width space, with
    entities of HTML as the signs that they mean, and with look-alikes as plain letters and brackets."""
    if text.isascii():
        return html.unescape(text)
    plain = unicodedata.normalize("NFKD", html.unescape(text))
    shown = (sign for sign in plain if unicodedata.category(sign) not in ("Cf", "Mn") and sign not in _WITHOUT_INK)
    return "".join(shown).translate(_LOOKS_LIKE)


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
    begins = {tag[:end] for tag in taken for end in range(len(name), min(len(tag), len(name) + _LONGEST_NUMBER) + 1)}
    return next(longer for longer in _longer(name, "_") if longer.lower() not in begins)


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


def without_control_marks(text: str) -> str:
    """The text without marks that chat templates put between messages: each gets a blank behind its first sign. For a
    server whose tokenizer is not at hand.

    Example: "<|im_end|>" -> "< |im_end|>"
    """
    return _CONTROL.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", text)
