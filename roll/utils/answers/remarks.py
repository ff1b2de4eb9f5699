r"""Remarks of a text on an answer in it: it is said again, is one of several tries, or is taken back.

72 (that is, six dozen)   First guess 24, second guess 25   \boxed{5} is wrong
"""

import re
from fractions import Fraction

from roll.utils.answers.formulas import LONGEST, NUMBER_PATTERN
from roll.utils.answers.numbers import read_number
from roll.utils.answers.text import TEXT
from roll.utils.answers.units import amount

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = (
    {word: n for n, word in enumerate(_ONES.split())}
    | {word: 10 * n for n, word in enumerate(_TENS.split(), 2)}
    | {"a": 1}
)
_TIMES: dict[str, Fraction] = {
    "percent": Fraction(1, 100), "dozen": Fraction(12), "dozens": Fraction(12), "score": Fraction(20),
    "hundred": Fraction(100), "thousand": Fraction(1000), "million": Fraction(10**6), "billion": Fraction(10**9),
}  # fmt: skip
_POWERS = {"squared": 2, "cubed": 3}

_SAYS_AGAIN = (
    r"(?:that\s+is(?:\s+to\s+say)?|i\.?\s?e\.?(?![a-z])|namely|in\s+other\s+words|equivalently|or\s+equivalently)"
)
_REMARK = re.compile(
    rf"(?<![-+*/=\u00d7^]\s)(?<!\bof\s)(?P<value>(?:{NUMBER_PATTERN}))(?P<unit>(?:\s+[A-Za-z]+){{0,2}})\s*(?:"
    rf"(?P<opens>[(\[])\s*{_SAYS_AGAIN}[,:]?\s*(?P<inside>(?:[^()\[\].\n]|\.(?=\d)){{0,80}})[)\]]"
    rf"|(?:[,;]|\s[\u2013\u2014-])\s*(?:{_SAYS_AGAIN}|which\s+is)[,:]?\s*(?P<behind>(?:[^()\[\].,;\n]|\.(?=\d)){{0,80}}))",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"(?<=\d)\s*[(\[](?:see|cf\.?|from|by|using|as\s+in)\s+(?:the\s+)?(?:equation|eq\.?|step|line|part|figure|fig\.?|table|case)s?"
    r"\s*\(?\d+\)?[)\]]",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"(?<!\s)\s{0,3}\\text\s*\{\s*\(([^(){}]*)\)\s*\}")
_MINUS = re.compile(r"\s*(?:negative|minus)\s+", re.IGNORECASE)
_HALF_OF_BRACKET = re.compile(r"\\text\s*\{([^{}()]*[()][^{}()]*)\}")
_AGAIN_AS_TEXT = re.compile(rf"\\text\s*\{{[\s,]*({_SAYS_AGAIN})[\s,:]*\}}", re.IGNORECASE)
_FORMULA_AGAIN = re.compile(
    rf"(?P<exact>[^()\[\]]*[^()\[\],;\s])\s*[,;]?\s*(?P<opens>[(\[])?\s*{_SAYS_AGAIN}[,:]?\s*(?P<again>[^()\[\]]*\d[^()\[\]]*?)\s*(?(opens)[)\]])[\s.]*",
    re.IGNORECASE,
)
"""A formula and its value: \\frac12 (i.e. 0.5)."""
_HEDGE = re.compile(r"\b(?:or|maybe|perhaps|possibly|not|if|unless|alternatively|else|instead)\b|\?", re.IGNORECASE)
_ALSO_IN = re.compile(rf"(?:or\s+)?(?P<number>{NUMBER_PATTERN})\s+(?P<unit>[A-Za-z]+)(?:\s+and\s+.*)?", re.IGNORECASE)

_IN_WORDS = re.compile(
    rf"(?<![\w.,/+*-])(?P<value>{NUMBER_PATTERN})\s+\((?!\s*mod)(?P<words>[a-z]{{3,}}(?:[ -][a-z]+)*)\)\s*$"
)

_NTH = (
    r"(?:first|second|third|fourth|fifth|[1-9](?:st|nd|rd|th)|next|last|other|another|primary|secondary|main|backup|back-up"
    r"|alternat(?:e|ive)|fallback)"
)
_TRY = r"(?:guess|attempt|try|trial|answer|option|candidate|possibility|solution|choice|pick|bet)"
_LABEL = (
    rf"\b(?:{_NTH}\s+{_TRY}|{_TRY}\s*(?:\#|no\.)?\s*(?:\d\b|[A-D]\b|one\b|two\b|three\b))"
    r"(?:\s+(?:is|was|(?:would|could|might|may)\s+be))?(?:[\s:=,$*\u2013\u2014-]|\\(?=\())*"
)
ANOTHER = re.compile(
    rf"[\s$.,;)]*(?:(?:and|but|then)\s+)?(?:(?:my|the|a)\s+)?(?:{_LABEL}|(?:alternatively|otherwise|maybe|perhaps|possibly)\b.{{0,20}}?"
    r"|(?:or|and)?\s*(?:it|this|that|(?:the|my)\s+(?:final\s+)?(?:answer|result|value))\s+(?:might|could|may|can)\s+(?:also\s+|as\s+well\s+)?be"
    r"|or\s+(?:else\s+)?(?:it|the\s+answer)\s+is|if\s+(?:not|that|this|it)\b[^.]{0,30}?)[\s:$*]*",
    re.IGNORECASE,
)
"""Text between two boxes that are tries at one answer."""
_TRIED = re.compile(rf"{_LABEL}(?P<value>{NUMBER_PATTERN})", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"\b(?:wrong|incorrect|fails?|failed|false|reject(?:ed)?|discard(?:ed)?|impossible|final(?:ly)?|not|cannot|too)\b|n't\b",
    re.IGNORECASE,
)
_BOX = r"(?:\\\(|\$)?\s{0,3}\\f?boxed\s{0,3}\{[^{}]{0,200}(?:\{[^{}]{0,80}\}[^{}]{0,80}){0,6}\}\s{0,3}(?:\$|\\\))?"
_DENIED_BOX = re.compile(
    rf"\b(?:is|was|be)\s+(?:definitely\s+|certainly\s+)?not\s+{_BOX}"
    rf"|{_BOX}[\s*]*(?:is|was)(?:\s+(?:clearly\s+|definitely\s+)?(?:wrong|incorrect|false|impossible)\b"
    r"|(?:n't|\s+not)\s+(?:the\s+|an?\s+|my\s+)?(?:\w+\s+)?(?:answer|correct|right|solution|valid)\b)"
)


def number_in_words(text: str) -> Fraction | None:
    """None for what is no number. Examples: "six dozen" -> 72, "seventy-two" -> 72, "6 dozen" -> 72, "12" -> 12."""
    words = re.findall(r"[^\s-]+|(?<!\S)-\S+", text.strip(" $.*").lower())
    if not words or len(words) > 12:
        return None
    total, part = Fraction(0), None
    for word in words:
        if word == "and" and part is not None:
            continue
        if word in _POWERS and part is not None:
            part **= _POWERS[word]
        elif word in _TIMES and part is not None:
            part *= _TIMES[word]
            if _TIMES[word] >= 1000:
                total, part = total + part, Fraction(0)
        elif word in _SMALL:
            part = (part or 0) + Fraction(_SMALL[word])
        elif part is None and (number := read_number(word)) is not None:
            part = number.hundredth().value if number.is_percent else number.value
        else:
            return None
    return total + (part or 0) if part is not None else None


def in_figures(text: str) -> str:
    """A number in words, or with a word of magnitude, as a number. Examples: "four" -> "4", "2.5 million" ->
    "2500000"."""
    plain = TEXT.sub(r" \1 ", text)
    if len(plain) > 80 or not re.search("[A-Za-z]{3}", plain) or re.search(r"percent", plain, re.IGNORECASE):
        return text
    sign, plain = ("-", plain[len(minus[0]) :]) if (minus := _MINUS.match(plain)) else ("", plain)
    value = number_in_words(plain)
    return text if value is None else f"{sign}{value}"


def without_remarks(text: str) -> str:
    """The text without what says a value once more, and without references to steps.

    What contradicts the value becomes another one: "72 (that is, 73)" -> "72 or 73".

    Examples: "72 (that is, six dozen)" -> "72", "150 minutes (i.e. 2.5 hours)" -> "150 minutes", "12 [see step 3]" ->
    "12".
    """
    text = _REFERENCE.sub("", _HALF_OF_BRACKET.sub(r"\1", _ASIDE.sub(r" (\1)", text)))
    return _IN_WORDS.sub(_in_words_once, _REMARK.sub(_said_once, text))


def once(text: str) -> str:
    r"""A formula that is said again as about what it says: r"\frac12 (i.e. 0.5)" -> r"\frac12 \approx 0.5"."""
    plain = _AGAIN_AS_TEXT.sub(r" \1 ", text)
    again = _FORMULA_AGAIN.fullmatch(plain) if len(text) <= LONGEST else None
    if again is None or re.match(r"[-+$]?\d", again["exact"]):
        return text
    return rf"{again['exact']} \approx {again['again']}"


def _in_words_once(remark: re.Match[str]) -> str:
    """Example: "72 (six dozen)" -> "72", "72 (seventy-three)" as it is."""
    same, value = number_in_words(remark["words"]), read_number(remark["value"])
    is_other = same is not None and (value is None or same != value.value)
    return remark[0] if is_other or _HEDGE.search(remark["words"]) else remark["value"]


def _said_once(remark: re.Match[str]) -> str:
    begins, is_bracket = f"{remark['value']}{remark['unit']}", remark["opens"] is not None
    again = (remark["inside"] if is_bracket else remark["behind"]).strip(" $")
    value = read_number(remark["value"])
    same = number_in_words(again)
    if value is not None and same == value.value:
        return begins
    if _HEDGE.search(again) or (not re.search(r"\d", again) and (same is not None or not is_bracket)):
        return remark[0]
    if is_bracket and not re.search(r"\d", again):
        return begins
    other = _ALSO_IN.fullmatch(again)
    if other is not None and remark["unit"].strip() and _is_other_unit(remark["unit"], other["unit"]):
        return begins
    return f"{remark['value']} or {again}" if is_bracket else remark[0]


def _is_other_unit(one: str, other: str) -> bool:
    """Example: 150 minutes are 2.5 hours."""
    units = amount(f"1 {one.strip()}"), amount(f"1 {other}")
    return units[0] is not None and units[1] is not None and units[0][1] != units[1][1]


def tries(text: str) -> str | None:
    """The values of several tries, where the last number of the text is one of them and none was taken back.

    Example: "First guess 24, second guess 25" -> "24 or 25"
    """
    found = list(_TRIED.finditer(text))
    if len(found) < 2 or re.search(r"\d", text[found[-1].end() :]):
        return None
    between = text[found[-2].end() : found[-1].start()]
    values = dict.fromkeys(match["value"].strip() for match in found)
    return " or ".join(values) if len(values) > 1 and not _TAKEN_BACK.search(between) else None


def without_denied_boxes(text: str) -> str:
    r"""Example: r"\boxed{5} is wrong, so it is 6" -> ", so it is 6"."""
    return _DENIED_BOX.sub(" ", text) if "boxed" in text else text
