"""Finding the final answer in a response."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, NamedTuple

TOKEN = re.compile(r"\\f?boxed\s*\{|\\f?boxed\s+(?P<word>[^\s{]+)|\\.|[{}]", re.DOTALL)
TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
SAID = re.compile(
    r"\b(?:answer|choice|option)[\s*]*(?:is|was|would be|should be|:)[\s*:]*(?=\S)"
    r"|\u7b54\u6848\s*(?:\u662f|\u4e3a|:|\uff1a)+\s*(?=\S)|^[#*]+[ \t]*(?:final[ \t]+)?answer[*:]*[ \t]*\n\s*(?=\S)",
    re.IGNORECASE | re.MULTILINE,
)
SENTENCE_END = re.compile(r"(?<!^[A-Z])[.!?](?:\s|$)|\n|\u3002")
POWER_OF_TEN = (
    r"[eE][-+]?\d+(?!\w)|\s*(?:\\times|\\cdot|\*|\u00d7|x)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)"
)
NUMBER = re.compile(
    r"[-+]?\\[dt]?frac\s*\{\s*[-+]?\d+\s*\}\s*\{\s*\d+\s*\}|(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
    rf"(?:{POWER_OF_TEN})?(?:\s*/\s*\d+)?(?:\\?%)?|(?<![\w.])[-+]?\.\d+(?:{POWER_OF_TEN})?(?:\\?%)?"
)
BESIDE = re.compile(r"[\s$]*[,;]?[\s$]*(or|and)?[\s$]*")  # of two boxes that are one answer
NEARBY = 80  # characters before the last number that are looked at
HEDGED = re.compile(
    rf"(?:(?:{NUMBER.pattern})[\s$]*,?\s+(?:or|(?P<range>to|through))|\bbetween[\s$]+(?:{NUMBER.pattern})[\s$]+and"
    r"|\bnot|n't|\\neq?|\u2260|(?<![\d)])!=)\s+$",
    re.IGNORECASE,
)
CHANGED = re.compile(
    r"(?<!range )(?<!ranges )(?<!ranging )\b(?:from|round|simplif|reduc|convert|chang|increas|decreas|drop|f[ae]ll|"
    r"r[io]se|rais|gr[eo]w|lower|go|went|add|join|expand|upgrad|extend|bump|evaluat|doubl)[a-z]*\b(?:[^.!?\n]|\.\d)*$",
    re.IGNORECASE,
)
"""Before "36 to 18", which then is 18."""
DENIED = re.compile(
    r"[\s$]*\b(?:is|was|are|were)(?:\s+(?:wrong|incorrect|false|impossible)\b|(?:n't|\s+(?:not|never))\s+"
    r"(?:(?:the|an?|our)\s+)?(?:(?!only|unique)\w+\s+)?(?:answer|correct|right|solution|true|possible|valid|it|what)\b)",
    re.IGNORECASE,
)
MATH = re.compile(r"\$\$?(?P<dollars>(?:[^$\\]|\\.)+)\$\$?|\\\((?P<round>.*?)\\\)|\\\[(?P<square>.*?)\\\]", re.DOTALL)
WORDS = re.compile(r"(?<![\\A-Za-z{])(?![A-Z]{2,3}(?![A-Za-z]))[A-Za-z]{2,}(?![A-Za-z}])")  # AB is a distance
_VARIABLE = r"(?![ai]\s+[a-z]{2})[a-z]"  # no article, no "I"
_TERM = rf"(?:\d+(?:\.\d+)?[a-z]?|{_VARIABLE})(?!\w)"
TERMS = re.compile(
    rf"(?<![\w.])(?!a\s)(?:{_TERM}(?:(?:[-+*/^]|\s[-+*/]\s){_TERM})+|\d+(?:\.\d+)?[xyz](?!\w|\s+(?:as|more|less|the|\w+er)\b))"
)
FOLLOWS = re.compile(
    r"\\(?:Rightarrow|Longrightarrow|rightarrow|longrightarrow|implies|iff|Leftrightarrow|therefore|to|mapsto)\b|[\u21d2\u2192]|=>"
)
DEFINES = re.compile(r"(?:\s|\\q?quad\b)*[A-Za-z](?:_\w|_\{\w+\})?\s*=")
WORD = r"\\(?:text|textrm|mathrm|mbox)\s*\{(?!\s*(?:or|and)\b)[^{}]*\}"  # a unit, a name, a full stop
RESULT = re.compile(
    rf"(?:^|(?<=[\d)]!)=|(?<![!<>])=|\\approx|\\sim)[\s\\$]*({NUMBER.pattern})"
    rf"(?:\s|\\[,;:! ]|[~.,;/]|{WORD}(?:\^\{{?\d\}}?)?)*$"
)
LOOKS = re.compile(r"\\(?:underline|bf|(?:text)?color\s*\{\w+\})\s*(?=\{)")
FULL_STOP = re.compile(r"\\text\s*\{[\s.,;]*\}\s*$")
LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, braces inside matched; None if there is none, or it is not closed.

    Examples: r"so \boxed{\frac{1}{2}}." -> r"\frac{1}{2}", r"\boxed{1}, no, \boxed{2" -> None
    """
    start, content, open_start, _ = _boxes(text)
    return content if open_start < start else None


def boxed_answer(text: str) -> str | None:
    r"""As `last_boxed`, with the boxes right before the last one that are given beside it.

    Examples: r"\boxed{4} or \boxed{5}" -> "4 or 5", r"\boxed{1}, $\boxed{2}$" -> "1, 2"
    """
    start, _, open_start, closed = _boxes(text)
    if open_start >= start or not closed:
        return last_boxed(text)
    *before, last = sorted(closed)
    answer, begins = last.content, last.start
    for box in reversed(before):
        between = BESIDE.fullmatch(text, box.end, begins) if box.end <= begins else None
        if between is None or not between[0].strip("$ \t\n"):
            break
        answer = f"{box.content}{' or ' if between[1] == 'or' else ', '}{answer}"
        begins = box.start
    return answer


def has_open_box(text: str) -> bool:
    r"""True if the last `\boxed{` is never closed: the answer was cut off in it."""
    start, _, open_start, _ = _boxes(text)
    return open_start > start


class Box(NamedTuple):
    """A closed `\\boxed{...}`: from its backslash to behind its brace."""

    start: int
    end: int
    content: str


def _boxes(text: str) -> tuple[int, str | None, int, list[Box]]:
    """Where the last closed box begins (-1: nowhere), what it holds, where the last open one begins, and all that are
    closed."""
    open_braces: list[tuple[int, bool, int]] = []  # (where the content begins, whether it is a box, where that begins)
    start, last = -1, None
    closed: list[Box] = []
    for match in TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup == "word":  # \boxed 5
            start, last = match.start(), match["word"].rstrip("$.,")
        elif token == "}":
            begin, is_box, at = open_braces.pop() if open_braces else (0, False, 0)
            content = text[begin : match.start()]
            if is_box and (content.strip() or last is None):  # an empty one is a word on where the answer goes
                closed.append(Box(at, match.end(), content))
                if begin > start:
                    start, last = begin, content
        elif token.endswith("{") and token != "\\{":
            open_braces.append((match.end(), token != "{", match.start()))
    return start, last, max((begin for begin, is_box, _ in open_braces if is_box), default=-1), closed


def last_number(text: str) -> str | None:
    r"""The last number as written, with sign, separators, decimals, power of ten, fraction a/b, percent sign, and with
    what makes it one of several or denies it; in a formula, all of that. None if there is none.

    Examples: "it costs $1,234.50 in all." -> "1,234.50", "it is 4 or 5" -> "4 or 5", "it is not 5" -> "not 5",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "it is 3x+5" -> "3x+5"
    """
    text = text.replace("\u2212", "-")
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    last = numbers.pop()
    start, end, said = _formula(text, last) or (last.start(), last.end(), last.group())
    hedge = HEDGED.search(text[max(0, start - NEARBY) : start].rstrip("$ \n") + " ")
    if hedge and hedge["range"] and CHANGED.search(text[max(0, start - NEARBY) : start], 0, hedge.start()):
        hedge = None
    denial = "not " if DENIED.match(text, end) else ""
    return denial + (hedge.group().replace("$", "") if hedge else "") + said


def _formula(text: str, number: re.Match[str]) -> tuple[int, int, str] | None:
    """Start, end and content of the formula that holds a number: between marks of LaTeX, or terms with letters."""
    for found in MATH.finditer(text, max(0, text.rfind("\n", 0, number.start()))):
        if found.start() < number.start() and number.end() <= found.end():
            content = next(part for part in found.groups() if part is not None).strip()
            return None if WORDS.search(content) else (found.start(), found.end(), _conclusion(content))
    for found in TERMS.finditer(text, max(0, number.start() - NEARBY)):
        if found.start() <= number.start() and number.end() <= found.end() and re.search("[a-z]", found.group()):
            return found.start(), found.end(), found.group()
    return None


def _conclusion(formula: str) -> str:
    r"""What a formula comes to: what is behind its last arrow, or the last of its equations, or of its numbers.

    Examples: r"2x = 48 \implies x = 24" -> "x = 24", "2x = 48, x = 24" -> "x = 24", "(3)(8) = 24" -> "24"
    """
    ends = [arrow.end() for arrow in FOLLOWS.finditer(formula)]
    last = next((end for end in reversed(ends) if _is_outside(formula, end)), 0)
    said = LOOKS.sub("", FULL_STOP.sub("", formula[last:])).strip()
    equations = said.split(",")
    if all("=" in each for each in equations) and not all(map(DEFINES.match, equations)):
        said = equations[-1].strip()
    result = RESULT.search(said)
    return result[1] if result and not LETTERS.search(re.sub(WORD, "", said[: result.start()])) else said


def _is_outside(formula: str, at: int) -> bool:
    """Whether no brace is open there."""
    return formula.count("{", 0, at) == formula.count("}", 0, at)


def last_tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`; None if there is none."""
    found = TAGGED.findall(text)
    return found[-1].strip() if found else None


def final_answer(text: str) -> tuple[str | None, Literal["boxed", "tag", "said", ""]]:
    r"""What a response gives as its answer, and how it says so: the last `\boxed{}` (none if the last one is never
    closed), else the last `<answer>...</answer>`, else the sentence behind the last "answer is" or "answer:".

    Examples: r"It is \boxed{B}." -> ("B", "boxed"), "So the answer is (C). Done." -> ("(C)", "said")
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip(), "boxed"
    if has_open_box(text):
        return None, ""
    tagged = last_tagged(text)
    if tagged is not None:
        return tagged, "tag"
    said = list(SAID.finditer(text))
    if said:
        sentence = SENTENCE_END.split(text[said[-1].end() :], maxsplit=1)[0]
        return sentence.strip(), "said"
    return None, ""
