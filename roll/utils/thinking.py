"""The marks between which a model thinks, in the text that it wrote.

A mark is known by its form, so that a new model, or one whose marks a user added, needs no setting:

- a name for thinking in brackets: <think> </think>, <seed:think>, <longcat_think>, <thought>, <reasoning>, [THINK]
  [/THINK], <|START_THINKING|> <|END_THINKING|>, <|begin_of_thought|> <|end_of_thought|>, and others of the kind;
- the marks that say it otherwise: <|inner_prefix|> (Apertus), <|channel> <channel|> (Gemma 4), <unused94> <unused95>
  (MedGemma), <|open|>think<|sep|> (Kimi K3);
- the channels of gpt-oss (harmony): what is in another channel than `final` is not the answer.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_KIND = r"(?:longcat|deep|inner|internal|hidden|private|silent|model)"
_NAME = r"(?:think(?:ing)?|thoughts?|reasoning|working_out|scratch_?pad|monologue|chain_of_thought)"
_NAME = rf"(?:{_KIND}_)?{_NAME}(?:_process)?"
_SIDE = r"(?:begin|start|end)"
_INNER = rf"/?(?:[\w-]+:)?(?:{_SIDE}_(?:of_)?)?{_NAME}(?:_{_SIDE})?(?::[\w-]+)?"
_MARK = re.compile(
    rf"<\|{_INNER}\|>|<\s?{_INNER}(?:\s[^<>\n]{{0,80}}=[^<>\n]{{0,80}})?\s?>|\u25c1{_INNER}\u25b7|(?-i:\[/?THINK(?:ING)?\])"
    r"|<\|inner_(?:prefix|suffix)\|>|<\|channel>(?:thought\b)?|<channel\|>|<unused94>(?:thought\b)?|<unused95>|<\|(?:open|close)\|>think<\|sep\|>",
    re.IGNORECASE,
)
_END = re.compile(r"^\W*/|(?<![a-z])(?:end|suffix|close)(?![a-z])|^<channel|^<unused95", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"\s[^<>]*=[^<>]*(?=>$)")
_SIDES = re.compile(r"(?<![a-z])(?:begin|start|end|of|prefix|suffix|open|close)(?![a-z])|[/_]", re.IGNORECASE)
_HEADER = re.compile(r"<\|channel\|>\s*(\w+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>")
_MESSAGE_END = re.compile(r"<\|(?:end|start|channel|return|call)\|>")
_OTHER_PARTS = re.compile(r"<\|(?:open|close)\|>\w+<\|sep\|>")  # of Kimi K3: the response
_FRAMES = re.compile(r"(?:<\|end\|>)?(?:<\|start\|>\w*)?" + _HEADER.pattern + r"|<\|(?:end|start)\|>")
_OTHER_SIDE = {"begin": "end", "start": "end", "prefix": "suffix", "open": "close"}
_SIDE_OF_BEGINNING = re.compile(r"(?<![a-z])(?:begin|start|prefix|open)(?![a-z])", re.IGNORECASE)
_IN_PIECES = (
    ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
    ("<|open|>", "<|sep|>", "<|close|>"),
)
"""Special tokens that mark thinking together with plain text between them."""
_TURN = re.compile(
    r"<[|\uff5c]|[|\uff5c]>|\[/?(?:INST|SYSTEM_PROMPT)\]|</?s>|_of_turn>"
    r"|^\W*(?:assistant|user|human|system|model|gpt)\b[ \t]*(?::|$)",
    re.IGNORECASE | re.MULTILINE,
)
"""A mark of turns: what is behind it is another message."""
_BEGINS_A_TURN = re.compile(r"(?:^|\n|[>\]:]|assistant|model)[ \t]*$", re.IGNORECASE)
_LONGEST = 4000  # characters of a prompt's end that may begin the answer
FINAL = "final"


@dataclass(frozen=True)
class Mark:
    """`pair` is the same for the two marks that belong together."""

    start: int
    end: int
    pair: str
    ends: bool


def marks_in(text: str) -> list[Mark]:
    return [
        Mark(match.start(), match.end(), _pair(match.group()), _END.search(match.group()) is not None)
        for match in _MARK.finditer(text)
    ]


def _pair(mark: str) -> str:
    """Example: <think> of both <think> and </think>, <|thinking|> of both <|START_THINKING|> and <|END_THINKING|>."""
    for name in ("channel", "unused"):
        if name in mark:
            return name
    return _SIDES.sub("", _ATTRIBUTES.sub("", mark)).lower()


def after_thinking(text: str) -> str:
    """The answer: what follows the end of the thinking. All of a text without thinking, nothing of one whose thinking
    never ends. The first mark of a text says by which pair it thinks; others are words: "<think>1</think>2</think> 3"
    -> " 3"."""
    answer = text[_thinking_length(text) :]
    if "<|channel|>" in text:
        return _MESSAGE_END.split(answer, maxsplit=1)[0]
    return _OTHER_PARTS.sub("", answer) if "<|sep|>" in answer else answer


def parted(text: str) -> tuple[str, str]:
    """The thinking, without marks, and the answer."""
    return without_marks(text[: _thinking_length(text)]), after_thinking(text)


def _thinking_length(text: str) -> int:
    """Characters of a text up to where its answer begins; all of them where it has none."""
    if "<|channel|>" in text:
        headers = list(_HEADER.finditer(text))  # none: of the first message not even the header is whole
        return headers[-1].end() if headers and headers[-1][1] == FINAL else len(text)
    marks = marks_in(text)
    if not marks:
        return 0
    last = [mark for mark in marks if mark.pair == marks[0].pair][-1]
    return last.end if last.ends else len(text)


@lru_cache(maxsize=64)  # the answers of a group have one prompt
def answer_opening(prompt: str) -> str:
    """Return the part of the answer that the prompt's end contains already: the mark that begins the thinking, with all
    that follows it ("<think>\\nOkay,"). Empty if no thinking is open, or the mark belongs to an earlier turn."""
    tail = prompt[-_LONGEST:]
    bare = tail.rstrip()
    marks, headers = marks_in(bare), list(_HEADER.finditer(bare))
    if headers and headers[-1][1] != FINAL:
        start, end = headers[-1].span()
    elif marks and not marks[-1].ends:
        start, end = marks[-1].start, marks[-1].end
    else:
        return ""
    is_open = end == len(bare) or (_BEGINS_A_TURN.search(bare[:start]) and not _TURN.search(bare[end:]))
    return tail[start:] if is_open else ""


def thinking_end(prompt: str) -> str:
    """The mark that ends the thinking that a prompt opens; "" where it opens none. Example: "</think>"."""
    opening = answer_opening(prompt)
    if _HEADER.match(opening):
        return f"<|end|><|start|>assistant<|channel|>{FINAL}<|message|>"
    if opening.startswith("<|channel>"):
        return "<channel|>"
    if opening.startswith("<unused94>"):
        return "<unused95>"
    if (mark := _MARK.match(opening)) is None:
        return ""
    said = _SIDE_OF_BEGINNING.sub(lambda side: _OTHER_SIDE[side[0].lower()], _ATTRIBUTES.sub("", mark[0]))
    if said == _ATTRIBUTES.sub("", mark[0]):
        return re.sub(r"^(<\|?\s?|\[|\u25c1)", r"\1/", said)
    return said.upper() if mark[0].isupper() else said


def opened(prompt: str, text: str) -> str:
    """A text with the opening that its prompt holds, unless it begins with that mark itself."""
    opening = answer_opening(prompt)
    return text if text.lstrip().startswith(opening.strip()) else opening + text


def without_marks(text: str) -> str:
    """The words of thinking and answer alike, a space in place of each mark."""
    if "<|" in text:
        text = _OTHER_PARTS.sub(" ", _FRAMES.sub(" ", text) if "<|channel|>" in text else text)
    return _MARK.sub(" ", text)


def marking_tokens(special: Iterable[str]) -> frozenset[str]:
    """Return the special tokens of a vocabulary that are needed to tell thinking from answers."""
    names = frozenset(special)
    single = {name for name in names if _MARK.fullmatch(name)}
    pieces = {piece for group in _IN_PIECES if names.issuperset(group[:2]) for piece in group if piece in names}
    return frozenset(single | pieces)
