r"""Two ways to write one answer, of which the parser knows one beside the other: a column is a tuple, x \ne 0 a set."""

import re
from fractions import Fraction

from roll.utils.answers.statements import is_balanced
from roll.utils.answers.text import TEXT, without_sizes

_MATRIX = re.compile(
    r"\\begin\{([bp])(?:small)?matrix\}((?:(?!\\begin|\\end).)*)\\end\{\1(?:small)?matrix\}", re.DOTALL
)
_TUPLE = re.compile(r"(?:\(|\\langle)(?P<inside>.*,.*)(?:\)|\\rangle)", re.DOTALL)
_SET_OF_TUPLE = re.compile(r"\\?\{\s*\((?P<inside>[^{}]*,[^{}]*)\)\s*\\?\}", re.DOTALL)
_UNEQUAL = re.compile(r"(?P<name>[A-Za-z])\s*(?:\\neq?(?![A-Za-z])|\\not\s*=|≠|!=)(?P<value>.*)", re.DOTALL)
_OF_REALS = re.compile(r"\\infty.*\\cup|\\mathbb\s*\{?R\}?\s*(?:\\setminus|\\backslash|\\smallsetminus)", re.DOTALL)

_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4}))?"
_DATES = [
    re.compile(pattern + _YEAR, re.IGNORECASE)
    for pattern in (rf"{_DAY}\s+(?:of\s+)?(?P<month>{_MONTHS})", rf"(?P<month>{_MONTHS})\s+{_DAY}")
]

_WHOLE = r"\d{1,4}"
_DEGREES = rf"-?(?P<degrees>{_WHOLE}(?:\.\d{{1,4}})?)\s*(?:\^\s*(?:\\circ|\{{\s*\\circ\s*\}})|°|\\degree|\s*degrees)"
_RADIANS = (
    rf"-?(?:(?P<top>{_WHOLE})?\s*\\pi\s*(?:/\s*(?P<under>{_WHOLE}))?|\\[dt]?frac\s*\{{\s*(?P<over>{_WHOLE})?\s*\\pi\s*\}}"
    rf"\s*\{{\s*(?P<below>{_WHOLE})\s*\}})(?:\s*(?:\\text\s*\{{)?\s*rad(?:ians)?\s*\}}?)?"
)
_AGAIN = r"(?:\\[,;: ]|\s|~)*(?P<sign>[(=])\s*(?:(?:\\text\s*\{)?\s*(?:i\.?\s?e\.?,?|that\s+is,?|or)\s*\}?)?\s*"
_ANGLES = [
    re.compile(rf"\s*(?P<first>{one}){_AGAIN}(?P<second>{other})\s*\)?\s*", re.IGNORECASE)
    for one, other in ((_DEGREES, _RADIANS), (_RADIANS, _DEGREES))
]


def in_one_form(truth: str, answer: str) -> tuple[str, str]:
    r"""Both texts in one notation, where one of them has it only beside the other:

    - a row or a column of a matrix beside a tuple is that tuple
    - a set of one tuple is the tuple
    - an angle in degrees and in radians, which must be the same, is the one that the truth has
    - a day of a month beside another one has the month before it
    - x \ne 0 beside a union of intervals is \mathbb{R} \setminus \{0\}
    """
    if (day := _day(truth)) is not None and (other := _day(answer)) is not None:
        return day, other
    answer = _one_angle(truth, answer)
    truth, answer = _without_set(truth), _without_set(answer)
    if _is_tuple(truth) != _is_tuple(answer):
        truth, answer = _as_tuple(truth), _as_tuple(answer)
    if _OF_REALS.search(truth) or _OF_REALS.search(answer):
        truth, answer = _as_reals(truth), _as_reals(answer)
    return truth, answer


def _day(text: str) -> str | None:
    """Example: "4th of July, 2024" -> "july 4 2024"."""
    plain = " ".join(TEXT.sub(r" \1 ", text).split()).strip(" $.")
    date = next((found for pattern in _DATES if (found := pattern.fullmatch(plain))), None)
    return None if date is None else f"{date['month'].lower()} {int(date['day'])} {date['year'] or ''}".strip()


def _is_tuple(text: str) -> bool:
    inside = _TUPLE.fullmatch(without_sizes(text).strip(" $."))
    return inside is not None and is_balanced(inside["inside"])


def _as_tuple(text: str) -> str:
    matrix = _MATRIX.fullmatch(text.strip(" $."))
    if matrix is None:
        return text
    rows = [row.split("&") for row in re.split(r"\\\\(?:\s*\[[^\[\]]*\])?", matrix[2].strip()) if row.strip()]
    if len(rows) > 1 and any(len(row) > 1 for row in rows):
        return text
    entries = [entry.strip() for row in rows for entry in row]
    return f"({', '.join(entries)})" if len(entries) > 1 and all(entries) else text


def _without_set(text: str) -> str:
    inside = _SET_OF_TUPLE.fullmatch(without_sizes(text).strip(" $."))
    return text if inside is None or not is_balanced(inside["inside"]) else f"({inside['inside']})"


def _as_reals(text: str) -> str:
    r"""Examples: x \ne 0, x \ne \pm 1, x \ne 1 and x \ne 2."""
    names, values = set[str](), list[str]()
    for part in re.split(r",|\\text\s*\{\s*and\s*\}|\band\b", text.strip(" $.")):
        unequal = _UNEQUAL.fullmatch(part.strip())
        if unequal is None and not values:
            return text
        if unequal is not None:
            names.add(unequal["name"])
        value = (part if unequal is None else unequal["value"]).strip()
        if not re.fullmatch(r"(?:\\pm\s*)?-?(?:[\d./]|\\[dt]?frac|\\sqrt|\\pi|[{}\s])+", value):
            return text
        values += [value.replace(r"\pm", sign) for sign in ("", "-")] if r"\pm" in value else [value]
    return rf"\mathbb{{R}} \setminus \{{{', '.join(values)}\}}" if len(names) == 1 else text


def _one_angle(truth: str, answer: str) -> str:
    angle = next((found for pattern in _ANGLES if (found := pattern.fullmatch(answer.strip(" $.")))), None)
    if angle is None or (angle["sign"] == "(") != answer.strip(" $.").endswith(")"):
        return answer
    over = Fraction(angle["top"] or angle["over"] or 1)
    under = Fraction(angle["under"] or angle["below"] or 1)
    signs = [angle[name].startswith("-") for name in ("first", "second")]
    if signs[0] != signs[1] or not under or over / under * 180 != Fraction(angle["degrees"]):
        return answer
    is_radians = [r"\pi" in angle[name] for name in ("first", "second")]
    wanted = r"\pi" in truth
    return angle["first"] if is_radians[0] == wanted else angle["second"]
