r"""Formulas in a text, and what they come to.

They stand between marks of LaTeX ($3x$), are lists of numbers (1, 2 and 3), words of mathematics outside of marks
(2 \pi r, \sqrt{5}), or terms with letters (3x + 5).
"""

import re
from itertools import chain

from roll.utils.answers.environments import on_one_line
from roll.utils.answers.units import unit_behind

NEARBY = 80  # characters before the last number that are looked at
_POWER_OF_TEN = (
    r"[eE][-+]?\d+(?!\w)|\s*(?:\\times|\\cdot|\*|\u00d7|x)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)"
)
_IN_THOUSANDS = (  # also of India
    r"\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])"
    r"|\d{1,3}(?:(?:[ \u00a0\u202f]\d{3}){2,}|(?:[\u00a0\u202f'\u2019_]\d{3})+|(?:\.\d{3}){2,})(?![\d_'])"
)
_DOTS = r"(?<=\d{3})(?:\.\.\.|\u2026|\\[lc]?dots\b)"
_PERCENT = r"\s?\\?%|\s(?:percent|per\s?cent)\b"
NUMBER_PATTERN = (
    r"[-+]?\\[dt]?frac\s*\{\s*[-+]?\d+\s*\}\s*\{\s*\d+\s*\}"
    r"|(?<![\w.])[-+]?\d{1,3}[ ]+\d{1,3}/\d{1,3}(?![\w/])"  # 3 1/2
    rf"|(?<![\w.])[-+]?(?:{_IN_THOUSANDS}|(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+(?:{_DOTS})?)?(?:{_POWER_OF_TEN})?(?:\s*/\s*\d+)?)(?:{_PERCENT})?"
    rf"|(?<![\w.])[-+]?\.\d+(?:{_DOTS})?(?:{_POWER_OF_TEN})?(?:{_PERCENT})?"
)
NUMBER = re.compile(NUMBER_PATTERN)

_LIST = re.compile(
    rf"(?<![A-Za-z])[(\[{{]\s*(?:{NUMBER_PATTERN})(?:\s*,\s*(?:{NUMBER_PATTERN}))+\s*[)\]}}]"
    rf"|(?:{NUMBER_PATTERN})(?:\s*,\s*(?:{NUMBER_PATTERN}))+(?:,?\s+(?:and|or)\s+|\s*,\s*)(?:{NUMBER_PATTERN})|(?:{NUMBER_PATTERN})[\s$]+and[\s$]+(?:{NUMBER_PATTERN})"
    rf"|(?:{NUMBER_PATTERN})\s*(?:\(\s*mod(?:ulo)?\s+(?:{NUMBER_PATTERN})\s*\)|mod(?:ulo)?\s+(?:{NUMBER_PATTERN}))"
    r"|(?<![\w.:])\d+(?::\d+)+(?![\w:])"
)
"""Several numbers that are one answer, a residue and a ratio: (1, 2)   1, 2 and 3   5 (mod 7)   3:2"""
LONGEST = 1000  # characters of a formula: one that never ends is searched for no further
MARKED = re.compile(rf"\$\$?((?:[^$\\]|\\.)+)\$\$?|\\\((.{{0,{LONGEST}}}?)\\\)|\\\[(.{{0,{LONGEST}}}?)\\\]", re.DOTALL)
_OF_SEVERAL_LINES = re.compile(
    rf"\$\$(.*?)\$\$|(?<!\\)\\\[(.{{0,{LONGEST}}}?)(?<!\\)\\\]|(\\begin\{{(?P<name>[a-z]+\*?)\}}.{{0,{LONGEST}}}?\\end\{{(?P=name)\}})",
    re.DOTALL,
)
_NAMES = r"(?:sqrt|sin|cos|tan|log|ln|exp|pi|mod)"
PLAIN_WORD = re.compile(  # AB is a distance
    rf"(?<![\\A-Za-z{{])(?![A-Z]{{2,3}}(?![A-Za-z])|(?:{_NAMES}|or|and|d[a-z])(?![A-Za-z]))[A-Za-z]{{2,}}(?![A-Za-z}}])"
)
_TERM = r"(?:\d+(?:\.\d+)?[a-z]?|(?![ai]\s+[a-z]{2})[a-z])(?!\w)"  # no article, no "I"
_TERMS = re.compile(
    rf"(?<![\w.])(?!a\s)(?:{_TERM}(?:(?:[-+*/^]|\s[-+*/]\s){_TERM})+|\d+(?:\.\d+)?[nxyz]{{1,3}}(?!\w|\s+(?:as|more|less|the|\w+er)\b))"
)
MATH = re.compile(
    rf"(?:\d[\d.,]*|\\(?:[A-Za-z]+|[{{}},;!])|(?<![A-Za-z]){_NAMES}(?![A-Za-z])|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
    r"|[-+*/^=<>_(){}\[\]|!\u221a\u03c0\u00d7\u00b7\u221e\u2261\u2264\u2265]|(?<=[\w}\])]),)+"
)
"""A word of mathematics, without blanks."""
_MORE_THAN_DIGITS = re.compile(rf"\\(?!times|cdot|text|div)[A-Za-z]|[\^\u221a\u03c0]|(?<![A-Za-z]){_NAMES}(?![A-Za-z])")
_FACTOR = re.compile(r"(?![mgshLV])[A-Za-z](?:[\^_].*)?")  # the r of 2\pi r, not a unit
_WORD = re.compile(r"[^\s$=:<>\u2248\u2192]+")
_OPERATORS, _AFTER = "+-*/^\u00d7\u00b7", ".,;!?*\"'"

_ARROW = re.compile(
    r"\\(?:Rightarrow|Longrightarrow|rightarrow|longrightarrow|implies|iff|Leftrightarrow|therefore|to|mapsto)\b"
    r"|[\u21d2\u2192]|=>"
)
_DEFINES = re.compile(r"(?:\s|\\q?quad\b)*[A-Za-z](?:_\w|_\{\w+\})?\s*=")
_ASIDE = r"\\(?:text|textrm|mathrm|mbox)\s*\{(?!\s*(?:or|and)\b)[^{}]*\}"  # a unit, a name, a full stop
_RESULT = re.compile(
    rf"(?:^|(?<=[\d)]!)=|(?<![!<>])=|\\approx|\\sim)[\s\\$]*({NUMBER_PATTERN})"
    rf"(?P<behind>(?:\s|\\[,;:! ]|[~.,;/]|{_ASIDE}(?:\^\{{?\d\}}?)?)*)$"
)
_LOOKS = re.compile(r"\\(?:underline|bf|(?:text)?color\s*\{\w+\})\s*(?=\{)|\\text\s*\{[\s.,;]*\}\s*$")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")


def formula_around(text: str, start: int, end: int) -> tuple[int, int, str] | None:
    """Start, end and conclusion of what the number from `start` to `end` is a part of."""
    marked = [MARKED.finditer(text, max(0, text.rfind("\n", 0, start)))]
    if "\n" in text or r"\begin" in text:
        marked.insert(0, _OF_SEVERAL_LINES.finditer(text))
    for match in chain.from_iterable(marked):
        if match.start() < start and end <= match.end():
            content = inside(match)
            if content.endswith(("(", "=", "+", "-")):  # two amounts in dollars
                continue
            return None if PLAIN_WORD.search(content) else (*match.span(), conclusion(content))
    for match in _LIST.finditer(text, max(0, start - NEARBY)):
        if match.start() <= start and end <= match.end():
            return *match.span(), re.sub(r"^\{(.*)\}$", r"\\{\1\\}", match[0].replace("$", ""))
    if (run := _run(text, start, end)) is not None:
        return run
    for match in _TERMS.finditer(text, max(0, start - NEARBY)):
        if match.start() <= start and end <= match.end() and re.search("[a-z]", match[0]):
            return *match.span(), match[0]
    return None


def inside(marked: re.Match[str]) -> str:
    """Return the text between the marks of a match of `MARKED`; several lines of it are joined if they are one
    answer."""
    return on_one_line(next(filter(None, marked.groups()), "").strip())


def _run(text: str, start: int, end: int) -> tuple[int, int, str] | None:
    r"""The words of mathematics around a number, if they hold more than digits: "it is 2 \pi r." gives r"2 \pi r"."""
    begins, ends = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    window = max(begins, start - NEARBY), min(ends if ends >= 0 else len(text), end + NEARBY)
    words = list(_WORD.finditer(text, *window))
    at = next(i for i, word in enumerate(words) if word.end() > start)
    first = last = at
    while first and _belong_together(text, words[first - 1], words[first]):
        first -= 1
    while last + 1 < len(words) and _belong_together(text, words[last], words[last + 1]):
        last += 1
    run = text[words[first].start() : words[last].end()]
    said = run.lstrip("*_\"'").rstrip(_AFTER + "+-/ ")
    if not _MORE_THAN_DIGITS.search(said) or not MATH.fullmatch(words[at][0].lstrip("*_\"'").rstrip(_AFTER)):
        return None
    start = words[first].start() + len(run) - len(run.lstrip("*_\"'"))
    return start, start + len(said), said


def _belong_together(text: str, left: re.Match[str], right: re.Match[str]) -> bool:
    one, other = left[0], right[0].rstrip(_AFTER)
    if not text[left.end() : right.start()].isspace() or {one, other} & {"a", "i", "A", "I"}:
        return False
    if not MATH.fullmatch(one) or not MATH.fullmatch(other) or one[-1] in _AFTER:
        return False
    if one[-1] in _OPERATORS or other[0] in _OPERATORS + "\\" or other.startswith("pi"):
        return True
    return one[-1].isalpha() and _FACTOR.fullmatch(other) is not None


def conclusion(formula: str) -> str:
    r"""Return the result of a formula: the part behind its last arrow, or its last equation, or its last number.

    Examples: r"2x = 48 \implies x = 24" -> "x = 24", "2x = 48, x = 24" -> "x = 24", "(3)(8) = 24" -> "24"
    """
    arrows = [arrow.end() for arrow in _ARROW.finditer(formula)]
    said = _LOOKS.sub("", formula[next((at for at in reversed(arrows) if _is_outside(formula, at)), 0) :]).strip()
    equations = said.split(",")
    if all("=" in each for each in equations) and not all(map(_DEFINES.match, equations)):
        said = equations[-1].strip()
    result = _RESULT.search(said)
    if result and result[0].startswith(r"\approx") and _MORE_THAN_DIGITS.search(said, 0, result.start()):
        return said  # 3\sqrt{13} \approx 10.82 says both
    if result is None or _LETTER.search(re.sub(_ASIDE, "", said[: result.start()])):
        return said
    return result[1] + unit_behind(result["behind"], 0)


def _is_outside(formula: str, at: int) -> bool:
    """Whether no brace is open there."""
    return formula.count("{", 0, at) == formula.count("}", 0, at)
