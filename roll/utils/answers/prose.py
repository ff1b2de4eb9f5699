r"""Answers given in sentences.

1. The sentence behind the last "answer is", if it is mathematics from end to end and no number follows it: "The answer
   is a + b."
2. Else the last number of the text, with its sign, unit or magnitude, the list or the formula that it is a part of
   (`formulas`). The 2 of "5 m^2" is no last number.
3. Else a last formula without numbers, or the few words behind the last "answer is".

Only this one answer counts, so a text that tries several gains nothing. All patterns take time linear in the length of
the text.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise

from roll.utils.answers.formulas import MARKED, MATH, NEARBY, NUMBER, NUMBER_PATTERN, conclusion, formula_around, inside
from roll.utils.answers.text import fractions_written_out, powers_written_out
from roll.utils.answers.units import unit_behind
from roll.utils.answers.words import number_in_words

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

_CHOICE = re.compile(r"^\(?[A-H][).:]\s+(?=\S)|\s+\([A-H]\)$")
_UNIT = r"(?:[kcm]?m|ft|in|yd|mi|feet|inches|units?|miles?)"
_POWER_OF_UNIT = re.compile(
    rf"(?<=[\d$])\s+(?:{_UNIT}(?:\s*/\s*(?:s|sec|h|min))?\s*(\$)?\^\s*\{{?[23]\}}?(?(1)\$)"
    rf"|\$\\text\s*\{{\s*{_UNIT}\s*\}}\s*\^\s*\{{?[23]\}}?\$)"
)
_BOLD_NUMBER = re.compile(rf"\*\*\s*({NUMBER_PATTERN})\s*\*\*")
_POWER = re.compile(r"(?<=\d)[\u00b2\u00b3\u00b9\u2070-\u207b]+")
_SHORT_FRACTION = re.compile(r"(\\[dt]?frac)\s?(\d)\s?(\d)(?!\d)")
_MARKED_ONE = re.compile(r"\$([^$=\n]{1,80})\$")
_BESIDE = re.compile(rf"{_MARKED_ONE.pattern}(?:\s*(?:,\s*(?:and|or)?|and|or)\s*{_MARKED_ONE.pattern})+")
_OR = re.compile(r"\$\s*,?\s*or\s*\$")
_SIGN_APART = re.compile(
    r"((?:\b(?:is|are|was|be|equals?|gives?|gets?|makes?|becomes?|remains?)|'s|[:=]|\A(?!\s*-))[ \t*]*)"
    r"(?:negative|minus|-)[ \t]+(?=[$\d.])",
    re.IGNORECASE,
)
"""A sign in words, or before a blank, that belongs to its number: "is minus 4", "= - 4"."""
_ABOUT = re.compile(
    rf"(?<=[\w)}}]\$)\s*,?\s*\(?(?:or|which\s+is)?\s*(?:about|approximately|roughly|\\approx)\s*[$*]*(?:{NUMBER_PATTERN})[$*]*\)?"
)
"""The rounded value of a formula before it: "$3\\sqrt{13}$ (approximately 10.82)"."""
_REMARK = re.compile(
    rf"(?P<answer>(?:{NUMBER_PATTERN})(?:[\s$*]*[A-Za-z\u00b0%]+){{0,4}}[$*]*)\s[\s$*]*"
    r"\((?!\s*mod)(?=[^()]{0,100}?[A-Za-z+*/=\u00d7-])[^()\n]{0,100}\)"
)
"""A number, its unit, and a remark in brackets: "72 clips (48 + 24)"."""
_MORE_OF_NUMBER = re.compile(
    r"[\s$*]{0,4}(?:(?P<magnitude>(?:hundred|thousand|million|billion|dozen)\b)|[ap]\.?\s?m\b\.?)", re.IGNORECASE
)
_TERMS_ALONE = re.compile(r"\A[^\d]*[A-Za-z)]\s*[-+*/^]\s*[A-Za-z(][^\d]*\Z")
_CONCLUDES = re.compile(
    r"(?:\b(?:is|are|to|as|be|gives?|get|obtain|becomes?|yields?|equals?|have|simply|answer)|[:=]|^|\n)[\s*]*$"
)


def last_said(text: str) -> str | None:
    """The rest of the sentence behind the last "answer is", "answer:" or heading "Answer"; None if there is none.

    Example: "So the answer is (C). Done." -> "(C)"
    """
    said = _said(text)
    return said and said[0].strip()


def answer_in_prose(text: str) -> str | None:
    r"""The answer of a text without a box, as the head of this file says. None if there is none.

    Examples: "it costs $1,234.50 in all." -> "1,234.50", "it is 1, 2 or 3" -> "1, 2 or 3",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "it is 3x+5" -> "3x+5", "The answer is x." -> "x"
    """
    text = _SIGN_APART.sub(r"\1-", _REMARK.sub(r"\g<answer> ", _ABOUT.sub(" ", _as_marked(text))))
    return _said_formula(text) or _last_formula(text) or _last_number(text) or _said_words(text)


def _as_marked(text: str) -> str:
    r"""The text with LaTeX for Unicode's fractions and powers, lone numbers without marks, and lists of formulas
    between one pair of marks. Examples: "3½" -> r"3\frac{1}{2}", "**5**" -> "5", "$a$ and $b$" -> "$a, b$"."""
    text = fractions_written_out(text).replace("\u2212", "-").replace("\u2044", "/").replace("\u2248", r"\approx ")
    text = _POWER.sub(lambda match: powers_written_out(match[0]), _SHORT_FRACTION.sub(r"\1{\2}{\3}", text))
    text = MARKED.sub(_bare_number, _BESIDE.sub(_between_marks, text))
    return _BOLD_NUMBER.sub(r"\1", text)


def _bare_number(marked: re.Match[str]) -> str:
    content = inside(marked)
    return content if NUMBER.fullmatch(content) else marked[0]


def _between_marks(beside: re.Match[str]) -> str:
    formulas = [formula.strip(" ,") for formula in _MARKED_ONE.findall(beside[0])]
    mark = " or " if _OR.search(beside[0]) else ", "
    return beside[0] if all(map(NUMBER.fullmatch, formulas)) else f"${mark.join(formulas)}$"


def _said(text: str) -> tuple[str, str] | None:
    """The rest of the sentence behind the last "answer is", and what follows it."""
    said = deque(SAID.finditer(text), maxlen=1)
    if not said:
        return None
    sentence, *rest = SENTENCE_END.split(text[said[0].end() :], maxsplit=1)
    return sentence, rest[0] if rest else ""


def _said_formula(text: str) -> str | None:
    """The formula that a sentence calls the answer, if it is mathematics alone."""
    said, rest = _said(text) or ("", "")
    said = _CHOICE.sub("", said.strip("* \t").rstrip("."))
    words = said.replace("$", " ").split()
    if not words or len(said) > 2 * NEARBY or "=" in said or "boxed" in said or NUMBER.search(rest) or "$" in rest:
        return None
    if not all(MATH.fullmatch(word) or word in ("and", "or") for word in words):
        return None
    has_unit = any(word[-1].isalnum() and len(after) == 1 and after.isalpha() for word, after in pairwise(words))
    return None if has_unit else " ".join(words)


def _said_words(text: str) -> str | None:
    """The few words that a text without numbers calls the answer, or the number in words that it is: "The answer is
    Tuesday.", "Twenty-one"."""
    whole = text.strip(" \t\n.!*$")
    if number_in_words(whole) is not None:
        return whole
    said = (_said(text) or ("", ""))[0].strip('* \t"$')
    said = re.sub(r"\\text(?:bf|it)?\s*\{([^{}]*)\}", r"\1", said).strip()
    return said if re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+){0,5}", said) else None


def _last_number(whole_text: str) -> str | None:
    text = _POWER_OF_UNIT.sub(lambda match: " " * len(match[0]), whole_text)
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    start, end = numbers[0].span()
    if (formula := formula_around(text, start, end)) is not None:
        said, end = formula[2], formula[1]
        unit = ""
    else:
        said, unit = text[start:end], unit_behind(whole_text, end)
    if (more := _MORE_OF_NUMBER.match(text, end)) and (more["magnitude"] or re.fullmatch(r"\d{1,2}:\d\d", said)):
        unit = more[0].rstrip()
    return said + unit


def _last_formula(text: str) -> str | None:
    """The last formula between marks, if it holds no number, and is said at the end to be the answer or stands in a
    text without numbers. Example: "(a + b)(a - b) / 2 is $p - q$." -> "p - q"."""
    marked = deque(MARKED.finditer(text), maxlen=1)
    content = inside(marked[0]) if marked else ""
    if not marked and len(text) <= NEARBY and _TERMS_ALONE.search(text):
        words = text.strip(" \n.*").split()
        return " ".join(words) if all(map(MATH.fullmatch, words)) else None
    if not content or NUMBER.search(content):
        return None
    start, end = marked[0].span()
    is_last = not text[end:].strip(" \t\n.!*") and _CONCLUDES.search(text[max(0, start - NEARBY) : start])
    return conclusion(content) if is_last or not NUMBER.search(text) else None
