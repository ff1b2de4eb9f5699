"""The final answer of a response: in boxes, in tags, or in a sentence (`prose`)."""

import re
from typing import Literal, NamedTuple

from roll.utils.answers.prose import last_said
from roll.utils.answers.remarks import ANOTHER

TOKEN = re.compile(r"\\f?boxed\s*\{|\\f?boxed\s+(?P<word>[^\s{]+)|\\.|[{}]", re.DOTALL)
TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
BLANK = re.compile(r"\s*")
FAR = 120  # characters between two boxes that are one answer
BESIDE = re.compile(r"[\s$]*[,;?/|]?[\s$]*(or|and)?[\s$]*")  # of two boxes that are one answer


class Box(NamedTuple):
    """Positions of a `\\boxed{...}` and of its content. It holds no text, since boxes may be nested by the thousand."""

    start: int
    end: int
    opens: int
    closes: int

    def content(self, text: str) -> str:
        return text[self.opens : self.closes]


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, braces inside matched; None if there is none, or it is not closed.

    Examples: r"so \boxed{\frac{1}{2}}." -> r"\frac{1}{2}", r"\boxed{1}, no, \boxed{2" -> None
    """
    boxes, is_open = _boxes(text)
    return boxes[-1].content(text) if boxes and not is_open else None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box, as `last_boxed`, with the boxes directly before it.

    Examples: r"\boxed{4} or \boxed{5}" -> "4 or 5", r"\boxed{1}, $\boxed{2}$" -> "1, 2"
    """
    boxes, is_open = _boxes(text)
    if is_open or not boxes:
        return None
    *before, last = boxes
    answer, begins = last.content(text), last.start
    for box in reversed(before):
        content = box.content(text)
        if box.end > begins or begins - box.end > FAR:
            break
        between = BESIDE.fullmatch(text, box.end, begins)
        if between is None and ANOTHER.fullmatch(text, box.end, begins) is None:
            break
        if between is None or between[0].strip("$ \t\n") or content.strip() != last.content(text).strip():
            answer = f"{content}{', ' if between is not None and between[1] != 'or' else ' or '}{answer}"
        begins = box.start
    return answer


def has_open_box(text: str) -> bool:
    r"""True if the last `\boxed{` is never closed: the answer was cut off in it."""
    return _boxes(text)[1]


def boxes_of(text: str) -> list[Box]:
    """The boxes that are closed, in the order of their beginnings."""
    return _boxes(text)[0]


def _boxes(text: str) -> tuple[list[Box], bool]:
    """The closed boxes in the order of their beginnings, and whether one that is never closed begins behind them. An
    empty one counts only where all are: it is a word on where the answer goes."""
    boxes: list[Box] = []
    braces: list[re.Match[str]] = []  # that are open
    for token in TOKEN.finditer(text):
        if token.lastgroup == "word":  # \boxed 5
            boxes.append(
                Box(*token.span(), token.start("word"), token.start("word") + len(token["word"].rstrip("$.,")))
            )
        elif token[0].endswith("{") and token[0] != "\\{":
            braces.append(token)
        elif token[0] == "}" and braces and (opened := braces.pop())[0] != "{":
            boxes.append(Box(opened.start(), token.end(), opened.end(), token.start()))
    boxes = sorted([box for box in boxes if not _is_blank(text, box)] or boxes)
    last_open = max((brace.start() for brace in braces if brace[0] != "{"), default=-1)
    return boxes, last_open > (boxes[-1].start if boxes else -1)


def _is_blank(text: str, box: Box) -> bool:
    return BLANK.fullmatch(text, box.opens, box.closes) is not None


def last_tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`; None if there is none."""
    matches = TAGGED.findall(text)
    return matches[-1].strip() if matches else None


def final_answer(text: str) -> tuple[str | None, Literal["boxed", "tag", "said", ""]]:
    r"""Return a response's final answer, and how it is marked: the last `\boxed{}` with those beside it (none if the
    last one is never closed), else the last `<answer>...</answer>`, else the sentence behind the last "answer is" or
    "answer:".

    Examples: r"It is \boxed{B}." -> ("B", "boxed"), "So the answer is (C). Done." -> ("(C)", "said")
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed.strip(), "boxed"
    if has_open_box(text):
        return None, ""
    tagged = last_tagged(text)
    if tagged is not None:
        return tagged, "tag"
    said = last_said(text)
    return (None, "") if said is None else (said, "said")
