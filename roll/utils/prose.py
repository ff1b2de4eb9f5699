r"""What sentences give as their answer: the last number of a text, with all that belongs to it.

1. The number as written: sign, separators, decimals, power of ten, fraction, percent sign (`NUMBER`).
2. Its formula, if it is in one: between marks of LaTeX ($3x$), or terms with letters (3x + 5). A formula gives what it
   comes to (`conclusion`).
3. What is before it and makes it one of several ("4 or 5", "between 4 and 5") or denies it ("not 5"). "From 36 to 18"
   tells of a change: it gives 18.
4. What is behind it and denies it ("5 is wrong").

All patterns take time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections import deque

SAID = re.compile(
    r"""\b(?:answer|choice|option)[\s*]*(?:is|was|would[ ]be|should[ ]be|:)[\s*:]*(?=\S)
    | \u7b54\u6848\s*(?:\u662f|\u4e3a|:|\uff1a)+\s*(?=\S)
    | ^[#*]+[ \t]*(?:final[ \t]+)?answer[*:]*[ \t]*\n\s*(?=\S)  # a heading
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
SENTENCE_END = re.compile(r"(?<!^[A-Z])[.!?](?:\s|$)|\n|\u3002")

_POWER_OF_TEN = (
    r"[eE][-+]?\d+(?!\w)|\s*(?:\\times|\\cdot|\*|\u00d7|x)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)"
)
_NUMBER = (
    r"[-+]?\\[dt]?frac\s*\{\s*[-+]?\d+\s*\}\s*\{\s*\d+\s*\}"
    rf"|(?<![\w.])[-+]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:{_POWER_OF_TEN})?(?:\s*/\s*\d+)?(?:\\?%)?"
    rf"|(?<![\w.])[-+]?\.\d+(?:{_POWER_OF_TEN})?(?:\\?%)?"
)
NUMBER = re.compile(_NUMBER)

_NEARBY = 80  # characters before the last number that are looked at
_BEFORE = re.compile(
    rf"(?:(?:{_NUMBER})[\s$]*,?\s+(?:or|(?P<range>to|through))|\bbetween[\s$]+(?:{_NUMBER})[\s$]+and"
    r"|\bnot|n't|\\neq?|\u2260|(?<![\d)])!=)\s+$",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"(?<!range )(?<!ranges )(?<!ranging )\b(?:from|round|simplif|reduc|convert|chang|increas|decreas|drop|f[ae]ll|"
    r"r[io]se|rais|gr[eo]w|lower|go|went|add|join|expand|upgrad|extend|bump|evaluat|doubl)[a-z]*\b(?:[^.!?\n]|\.\d)*$",
    re.IGNORECASE,
)
_DENIAL_BEHIND = re.compile(
    r"[\s$]*\b(?:is|was|are|were)(?:\s+(?:wrong|incorrect|false|impossible)\b|(?:n't|\s+(?:not|never))\s+"
    r"(?:(?:the|an?|our)\s+)?(?:(?!only|unique)\w+\s+)?(?:answer|correct|right|solution|true|possible|valid|it|what)\b)",
    re.IGNORECASE,
)

_MARKED = re.compile(r"\$\$?((?:[^$\\]|\\.)+)\$\$?|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)
_PLAIN_WORD = re.compile(r"(?<![\\A-Za-z{])(?![A-Z]{2,3}(?![A-Za-z]))[A-Za-z]{2,}(?![A-Za-z}])")  # AB is a distance
_TERM = r"(?:\d+(?:\.\d+)?[a-z]?|(?![ai]\s+[a-z]{2})[a-z])(?!\w)"  # no article, no "I"
_TERMS = re.compile(
    rf"(?<![\w.])(?!a\s)(?:{_TERM}(?:(?:[-+*/^]|\s[-+*/]\s){_TERM})+|\d+(?:\.\d+)?[xyz](?!\w|\s+(?:as|more|less|the|\w+er)\b))"
)

_ARROW = re.compile(
    r"\\(?:Rightarrow|Longrightarrow|rightarrow|longrightarrow|implies|iff|Leftrightarrow|therefore|to|mapsto)\b"
    r"|[\u21d2\u2192]|=>"
)
_DEFINES = re.compile(r"(?:\s|\\q?quad\b)*[A-Za-z](?:_\w|_\{\w+\})?\s*=")
_ASIDE = r"\\(?:text|textrm|mathrm|mbox)\s*\{(?!\s*(?:or|and)\b)[^{}]*\}"  # a unit, a name, a full stop
_RESULT = re.compile(
    rf"(?:^|(?<=[\d)]!)=|(?<![!<>])=|\\approx|\\sim)[\s\\$]*({_NUMBER})"
    rf"(?:\s|\\[,;:! ]|[~.,;/]|{_ASIDE}(?:\^\{{?\d\}}?)?)*$"
)
_LOOKS = re.compile(r"\\(?:underline|bf|(?:text)?color\s*\{\w+\})\s*(?=\{)|\\text\s*\{[\s.,;]*\}\s*$")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")


def last_said(text: str) -> str | None:
    """The rest of the sentence behind the last "answer is", "answer:" or heading "Answer"; None if there is none.

    Example: "So the answer is (C). Done." -> "(C)"
    """
    said = deque(SAID.finditer(text), maxlen=1)
    return SENTENCE_END.split(text[said[0].end() :], maxsplit=1)[0].strip() if said else None


def last_number(text: str) -> str | None:
    r"""The last number with what belongs to it, as the head of this file says. None if there is none.

    Examples: "it costs $1,234.50 in all." -> "1,234.50", "it is 4 or 5" -> "4 or 5", "it is not 5" -> "not 5",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "it is 3x+5" -> "3x+5"
    """
    text = text.replace("\u2212", "-")
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    start, end, said = _formula(text, numbers[0]) or (*numbers[0].span(), numbers[0].group())
    denial = "not " if _DENIAL_BEHIND.match(text, end) else ""
    return denial + _hedge(text[max(0, start - _NEARBY) : start]) + said


def _hedge(before: str) -> str:
    """What is right before a number and makes it one of several or denies it. Example: "so $4$ or $" -> "4 or "."""
    hedge = _BEFORE.search(before.rstrip("$ \n") + " ")
    if hedge is None or (hedge["range"] and _CHANGE.search(before, 0, hedge.start())):
        return ""
    return hedge.group().replace("$", "")


def _formula(text: str, number: re.Match[str]) -> tuple[int, int, str] | None:
    """Start, end and conclusion of the formula that holds a number."""
    for found in _MARKED.finditer(text, max(0, text.rfind("\n", 0, number.start()))):
        if found.start() < number.start() and number.end() <= found.end():
            content = found[found.lastindex or 0].strip()
            return None if _PLAIN_WORD.search(content) else (*found.span(), conclusion(content))
    for found in _TERMS.finditer(text, max(0, number.start() - _NEARBY)):
        if found.start() <= number.start() and number.end() <= found.end() and re.search("[a-z]", found.group()):
            return *found.span(), found.group()
    return None


def conclusion(formula: str) -> str:
    r"""What a formula comes to: what is behind its last arrow, or the last of its equations, or of its numbers.

    Examples: r"2x = 48 \implies x = 24" -> "x = 24", "2x = 48, x = 24" -> "x = 24", "(3)(8) = 24" -> "24"
    """
    arrows = [arrow.end() for arrow in _ARROW.finditer(formula)]
    said = _LOOKS.sub("", formula[next((at for at in reversed(arrows) if _is_outside(formula, at)), 0) :]).strip()
    equations = said.split(",")
    if all("=" in each for each in equations) and not all(map(_DEFINES.match, equations)):
        said = equations[-1].strip()
    result = _RESULT.search(said)
    return result[1] if result and not _LETTER.search(re.sub(_ASIDE, "", said[: result.start()])) else said


def _is_outside(formula: str, at: int) -> bool:
    """Whether no brace is open there."""
    return formula.count("{", 0, at) == formula.count("}", 0, at)
