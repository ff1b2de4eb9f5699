r"""What sentences give as their answer.

1. The sentence behind the last "answer is", if it is mathematics from end to end and no number follows it: "The answer
   is a + b." Else the last number of the text, with all that belongs to it:
2. The number as written: sign, separators, decimals, power of ten, fraction, percent sign (`NUMBER`). "5, not 4" and
   "5 rather than 4" give 5; the 2 of "5 m^2" and the 7 of "5 (mod 7)" are no last numbers.
3. What it is a part of: a formula between marks of LaTeX ($3x$) or outside of them (2\pi, 3x + 5), which gives what it
   comes to (`formulas`); a list of numbers ("1, 2 and 3", "(1, 2)").
4. What is before it and makes it one of several ("4 or 5", "x = 4, x = 5", "4-5"), a bound ("x > 5", "at least 5") or
   none ("not 5", "rule out 5"). "From 36 to 18" tells of a change: it gives 18.
5. What is behind it and denies it ("5 is wrong").

All patterns take time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise

from roll.utils.answers.formulas import MATH, NEARBY, NUMBER, NUMBER_PATTERN, formula_around
from roll.utils.answers.text import BOUND_IN_WORDS

SAID = re.compile(
    r"""\b(?:answer(?:[ ]to[ ](?:the|this)[ ]\w+)?|choice|option|ans\.?(?=[ ]?:))[\s*]*
      (?:is|was|(?:would|should|must)[ ]be|:)
      (?:[\s*,]+(?:therefore|thus|hence|then|(?:clear|obvious|simp|definite|probab|(?:most[ ])?like)ly|indeed)\b,?)?
      [\s*:]*(?=\S)
    | (?:\u7b54\u6848|\u6b63\u786e\u7684?\u9009\u9879)\s*(?:\u5e94\u8be5)?(?:\u662f|\u4e3a|:|\uff1a)+\s*(?=\S)
    | (?<!\u4e0d)(?<!\u4e0d\u80fd)\u9009\u62e9?\s*[:\uff1a]?\s*(?=[(\uff08]?[A-J\uff21-\uff2a])  # I choose
    | ^[#*]+[ \t]*(?:final[ \t]+)?answer[*:]*[ \t]*\n\s*(?=\S)  # a heading
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
SENTENCE_END = re.compile(r"(?<!^[A-Z])[.!?](?:\s|$)|\n|\u3002")

_BEFORE = re.compile(
    rf"""(?:(?:{NUMBER_PATTERN})[\s$*]*(?:
        (?:\s?[a-z]+)?[\s$*,.;(]+(?:(?:and/)?or|maybe|perhaps|possibly|alternatively,?)(?:\s+(?:maybe|perhaps|possibly))?
        |,?\s+(?P<range>to|through))
    | (?P<sum>(?<!sum[ ])(?<!sums[ ])\bup\s+to) | {BOUND_IN_WORDS}
    | \bbetween(?:[\s$]+(?:{NUMBER_PATTERN})[\s$]+and)?
    | (?<=\w\s)(?:[<>]=?|[\u2264\u2265]|\\[lg]eq?)
    | (?P<none>\b(?:except(?:\s+for)?|rul(?:e|es|ed|ing)\s+out
        |(?:eliminat|exclud)(?:es?|ing)|(?:reject|discard)(?:s|ing)?)
        |(?:\b(?:not|never|cannot|neither|nor)|n't)(?:\s+(?:possibly\s+)?(?:be|equal(?:\s+to)?))?
        | \\neq?|\u2260|(?<![\d)])!=))\s+$""",
    re.IGNORECASE | re.VERBOSE,
)
_RANGE = re.compile(r"(?<![\w.,\u2013-])(?P<low>\d+(?:\.\d+)?)[$*%]*(?:-|\s*\u2013\s*)[$*]*$")
_NAMED = r"(?<![\w\\])(?P<name>[A-Za-z])(?:_\w)?\s*="
_SAME_NAME = re.compile(
    rf"{_NAMED}[\s$*]*(?:{NUMBER_PATTERN})"
    rf"(?:(?:[ $*,;]|\b(?:or|and))+(?P=name)(?:_\w)?\s*=[\s$*]*(?:{NUMBER_PATTERN}))*"
    rf"(?:[ $*]*[,;][ $*]*(?:or|and)?|[ $*]+(?:or|and))[ $*]+(?P=name)(?:_\w)?\s*=[\s$*]*$"
)
"""The values before the last one of what several are given: "x = 1, x = 2 or x = "."""
_CONTRAST = re.compile(
    rf"(?P<meant>{NUMBER_PATTERN})[\s$]*(?:[a-z]+\s*)?,?\s*\(?(?:and\s+)?(?:not|rather\s+than|instead\s+of|as\s+opposed\s+to)[\s$]+"
    rf"(?:{NUMBER_PATTERN})[\s$]*\)?"
)
_CHOICE = re.compile(r"^\(?[A-H][).:]\s+(?=\S)|\s+\([A-H]\)$")
_UNIT = r"(?:[kcm]?m|ft|in|yd|mi|feet|inches|units?|miles?)"
_NO_LAST = re.compile(
    rf"(?<=[\d$])\s+(?:{_UNIT}\s*(\$)?\^\s*\{{?[23]\}}?(?(1)\$)|\$\\text\s*\{{\s*{_UNIT}\s*\}}\s*\^\s*\{{?[23]\}}?\$)"
)
"""The power of a unit, "5 m^2" and "$5$ m$^2$"."""
_CHANGE = re.compile(
    r"(?<!range )(?<!ranges )(?<!ranging )(?<!anything )(?<!anywhere )(?<!somewhere )(?<!values )(?<!numbers )"
    r"\b(?:from|round|simplif|reduc|convert|chang|increas|decreas|drop|f[ae]ll|"
    r"r[io]se|rais|gr[eo]w|lower|go|went|add|join|expand|upgrad|extend|bump|evaluat|doubl)[a-z]*\b(?:[^.!?\n]|\.\d)*$",
    re.IGNORECASE,
)
_DENIAL_BEHIND = re.compile(
    r"[\s$*]*\b(?:fails\b|do(?:es)?(?:n't|\s+not)\s+(?:work|fit|hold)\b"
    r"|(?:can(?:not|'t|\s+not)|might|may)\s+be\s+(?:wrong|right|correct|it|the)\b"
    r"|(?:is|are)\s+(?:ruled\s+out|eliminated|excluded|rejected|discarded)\b)"
    r"|[\s$]*\b(?:is|was|are|were)(?:\s+(?:wrong|incorrect|false|impossible)\b|(?:n't|\s+(?:not|never))\s+"
    r"(?:(?:the|an?|our)\s+)?(?:(?!only|unique)\w+\s+)?(?:answer|correct|right|solution|true|possible|valid|it|what)\b)",
    re.IGNORECASE,
)


def last_said(text: str) -> str | None:
    """The rest of the sentence behind the last "answer is", "answer:" or heading "Answer"; None if there is none.

    Example: "So the answer is (C). Done." -> "(C)"
    """
    said = _said(text)
    return said and said[0].strip()


def answer_in_prose(text: str) -> str | None:
    r"""The answer of a text without a box, as the head of this file says. None if there is none.

    Examples: "it costs $1,234.50 in all." -> "1,234.50", "it is 4 or 5" -> "4 or 5", "it is not 5" -> "not 5",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "it is 3x+5" -> "3x+5", "The answer is x." -> "x"
    """
    text = text.replace("\u2212", "-")
    return _said_formula(text) or _last_number(text)


def _said(text: str) -> tuple[str, str] | None:
    """The rest of the sentence behind the last "answer is", and what follows it."""
    said = deque(SAID.finditer(text), maxlen=1)
    if not said:
        return None
    sentence, *rest = SENTENCE_END.split(text[said[0].end() :], maxsplit=1)
    return sentence, rest[0] if rest else ""


def _said_formula(text: str) -> str | None:
    """What an answer is said to be, if that is mathematics alone."""
    said, rest = _said(text) or ("", "")
    said = _CHOICE.sub("", said.strip("* \t").rstrip("."))
    words = said.replace("$", " ").split()
    if not words or len(said) > 2 * NEARBY or "=" in said or "boxed" in said or NUMBER.search(rest) or "$" in rest:
        return None
    if not all(MATH.fullmatch(word) or word in ("and", "or") for word in words):
        return None
    has_unit = any(word[-1].isalnum() and len(after) == 1 and after.isalpha() for word, after in pairwise(words))
    return None if has_unit else " ".join(words)


def _last_number(text: str) -> str | None:
    text = _NO_LAST.sub(lambda match: " " * len(match[0]), text)
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    start, end = numbers[0].span()
    contrast = next((one for one in _CONTRAST.finditer(text, max(0, start - NEARBY)) if one.end() >= end), None)
    if contrast is not None:
        start, end = contrast.span("meant")
    others = _SAME_NAME.search(text, max(0, start - NEARBY), start)
    start, end, said = formula_around(text, start, end) or (start, end, text[start:end])
    if others is not None:
        values = NUMBER.findall(others[0].replace("$", " "))
        return ", ".join([*values, re.sub(rf"^{_NAMED}\s*", "", said)])
    denial = "not " if _DENIAL_BEHIND.match(text, end) else ""
    return denial + _hedge(text[max(0, start - NEARBY) : start], said) + said


def _hedge(before: str, said: str) -> str:
    """What is right before a number and makes it one of several or denies it. Example: "so $4$ or $" -> "4 or "."""
    if (low := _RANGE.search(before)) and re.fullmatch(r"\d+(?:\.\d+)?", said) and float(low["low"]) < float(said):
        return f"{low['low']} to "
    hedge = _BEFORE.search(before.rstrip("$* \n") + " ")
    if hedge is None or ((hedge["range"] or hedge["sum"]) and _CHANGE.search(before, 0, hedge.start())):
        return ""
    return "not " if hedge["none"] else re.sub("[$*(]", "", hedge.group())
