r"""Answers given in sentences.

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

import re
from collections import deque
from fractions import Fraction
from itertools import pairwise

from roll.utils.answers.calculations import CalculationProblem, evaluate
from roll.utils.answers.formulas import MARKED, MATH, NEARBY, NUMBER, NUMBER_PATTERN, conclusion, formula_around, inside
from roll.utils.answers.numbers import read_number
from roll.utils.answers.remarks import number_in_words, tries, without_denied_boxes, without_remarks
from roll.utils.answers.text import BOUND_IN_WORDS, fractions_written_out, powers_written_out
from roll.utils.answers.units import unit_behind

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

_FILLERS = (
    r"(?:it|is|this|that|the|answer|result|value|even|else|also|might|may|could|can|would|be|maybe|perhaps|possibly|about"
    r"|around|approximately|roughly)"
)
_MAY_ALSO = r"(?:it|this|that|(?:the\s+)?answer)\s+(?:might|could|may|can)\s+(?:also|as\s+well|even|perhaps)\s+be"
_IF_WRONG = (
    r"(?:(?:and|but)\s+)?if\s+(?:(?:that|it|this)(?:'s|\s+is)?\s+)?(?:not|wrong|incorrect|false)"
    r"(?:\s+(?:correct|right))?,?"
)
_BEFORE = re.compile(
    rf"""(?:(?:{NUMBER_PATTERN})[\s$*]*(?:
        (?:\s?[a-z]+)?[\s$*,.;?(\u2026\u2013\u2014-]+(?:(?:and/)?or|maybe|perhaps|possibly|alternatively,?|{_MAY_ALSO}|{_IF_WRONG})(?:\s+(?:{_FILLERS}|then|try|use|take))*
        |,?\s+(?P<range>to|through)|(?:\||;|&|\u2228|\u2026|\.\.\.|\bvs\.?(?=\s)|\bversus\b)[\s$*]*)
    | (?P<sum>(?<!sum[ ])(?<!sums[ ])\bup\s+to) | {BOUND_IN_WORDS}
    | \bbetween(?:[\s$]+(?:{NUMBER_PATTERN})(?:\s?[a-z]{{1,9}})?[\s$]+and)?
    | (?<=\w\s)(?:[<>]=?|[\u2264\u2265]|\\[lg]eq?)
    | \bif\s+not[\s$]+(?:{NUMBER_PATTERN})[\s$]*,?\s+(?:then|it\s+is)
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
    rf"(?P<meant>{NUMBER_PATTERN})[\s$]*(?:[a-z]+)?(?:\s+(?!(?:and|but|so|is|are|it|he|she)\b)\(?[a-z]+\)?){{0,4}},?\s*\(?(?:and\s+)?(?:not|rather\s+than|instead\s+of|as\s+opposed\s+to)[\s$]+"
    rf"(?:{NUMBER_PATTERN})[\s$]*\)?"
)
_CHOICE = re.compile(r"^\(?[A-H][).:]\s+(?=\S)|\s+\([A-H]\)$")
_UNIT = r"(?:[kcm]?m|ft|in|yd|mi|feet|inches|units?|miles?)"
_NO_LAST = re.compile(
    rf"(?<=[\d$])\s+(?:{_UNIT}(?:\s*/\s*(?:s|sec|h|min))?\s*(\$)?\^\s*\{{?[23]\}}?(?(1)\$)|\$\\text\s*\{{\s*{_UNIT}\s*\}}\s*\^\s*\{{?[23]\}}?\$)"
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


_KEY = r"(?:(?:answer|solution)\s+)?key|answer\s+sheet|solutions?\s+manual|grader|marking\s+scheme"
_TRUTH = r"(?:answer|solution)\s+key|(?:reference|official|model)\s+(?:answer|solution)|ground[\s-]+truth(?:\s+answer)?"
_SAYS = r"(?:says?|said|states?|lists?|gives?|claims?|wants?|expects?|has)"
_A_KEY = ("key", "book", "sheet", "manual", "grader", "scheme", "answer", "solution", "truth")  # words of the next
_OF_A_KEY = re.compile(
    rf"""(?:[(\[,;]\s*)?(?:\b(?:but|although|though|while|whereas|since|because|and|as)\s+)?(?:\bthe\s+)?
      (?:\b(?:{_KEY})\s+(?:\w+\s+)?{_SAYS}(?:\s+that)?
        |\b(?:text)?book\s+(?:\w+\s+)?(?:says?|said|states?|claims?)(?:\s+that)?
        |\b(?:{_TRUTH})\s*(?::|\b(?:is|was|(?:should|must|would|may|might|could)\s+be)\b)
        |(?:(?<=\()|(?<=but\s)|(?<=although\s)|(?<=though\s))(?:the\s+)?expected\s+answer\s*(?::|\bis\b))
      (?:\s+(?:the\s+answer|it)\s+is|\s+it's)?:?[\s$*"]*(?P<box>\\boxed\s*\{{)?\(?(?:{NUMBER_PATTERN}|[A-J]\b)(?(box)\}})[)$*"\]]*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Sentences about an answer key, a book's answer, or what a judge expects, which state no answer themselves."""
_BOLD_NUMBER = re.compile(rf"\*\*\s*({NUMBER_PATTERN})\s*\*\*")
_QUESTIONED = re.compile(rf"({NUMBER_PATTERN})[\s$*]*\?")
_POWER = re.compile(r"(?<=\d)[\u00b2\u00b3\u00b9\u2070-\u207b]+")
_SHORT_FRACTION = re.compile(r"(\\[dt]?frac)\s?(\d)\s?(\d)(?!\d)")
_MARKED_ONE = re.compile(r"\$([^$=\n]{1,80})\$")
_BESIDE = re.compile(rf"{_MARKED_ONE.pattern}(?:\s*(?:,\s*(?:and|or)?|and|or)\s*{_MARKED_ONE.pattern})+")
_BRACKET_OF_WORDS = re.compile(r"(?<=\d)[ ]*\([^()\d]*\)[.\s]*$")
_OR = re.compile(r"\$\s*,?\s*or\s*\$")
_SEVERAL = re.compile(
    rf"(?:(?:either|candidates?|one of)\b[\s:]*)?[|\s]*(?:{NUMBER_PATTERN})"
    rf"(?:(?:[\s,;|&?~\u2192\u2228]|=>|\b(?:vs\.?|versus)\b)+(?:{NUMBER_PATTERN}))+[\s.?|]*",
    re.IGNORECASE,
)
_WORDS_BEHIND = r"(?:[\s$*]*(?!(?:or|and|plus|minus|times|not)\b)[A-Za-z\u00b0%]+(?:\^\{?\d\}?)?){0,4}[\s$*]*"
_BEFORE_BRACKET = re.compile(rf"({NUMBER_PATTERN}){_WORDS_BEHIND}(?<=\s)$")
_NO_EXPLANATION = re.compile(
    r"\s*(?:(?:and/)?or|maybe|perhaps|possibly|alternatively|mod(?:ulo)?|not|so|thus|hence|therefore|that\s+is|i\.?e\.?)\b"
    r"|\s*[=\\]|.*\b(?:answer|total|result|sum)\s*(?:is\b|[:=])",
    re.IGNORECASE,
)
_SUM = re.compile(r"\((?!\s*=[\s$]*[\d.,]+\s*\))\s*=?[\d\s.,+*/\u00d7x$-]*\)")
_CALCULATED = re.compile(
    rf"(?<![-+*/\u00d7])(?<![-+*/\u00d7]\s)(?:{NUMBER_PATTERN})[\s$]*=[\s$]*(?:{NUMBER_PATTERN})"
    rf"(?:\s*[-+*/\u00d7][\s$]*(?:{NUMBER_PATTERN}))+$"
)
"""A value before its calculation: 72 = 48 + 24."""
_OF_FACTORIAL = re.compile(rf"(?:{NUMBER_PATTERN})[\s$]*=[\s$]*\d+!$")
"""A value that is a factorial, 6 = 3!, and no shout, 3 = 3!"""
_ABOUT = re.compile(
    r"[\s$*]*(?:,\s*)?\(?\s*(?:(?:or|which\s+is|i\.?e\.?,?|that\s+is,?)\s+)?"
    r"(?:about|approximately|approx\.?|roughly|around|\\approx|~)\s*[$*]*\s*$"
)
_AGAIN = re.compile(r"[\s$*]*[,;(]\s*(?:i\.?e\.?|that\s+is|namely)[,:]?\s*[$*]*\s*$", re.IGNORECASE)
_MORE_OF_NUMBER = re.compile(
    r"[\s$*]{0,4}(?:(?P<magnitude>(?:hundred|thousand|million|billion|dozen)\b)|[ap]\.?\s?m\b\.?)", re.IGNORECASE
)
_BEFORE_SIGN = (
    r"(?:(?:\b(?:is|are|was|be|equals?|gives?|gets?|makes?|becomes?|remains?|leaves?|yields?|not|never|but|or|either)"
    r"|'s|n't)\b|[:=]|\A)"
)
_DASH = re.compile(r"([=:][ \t$*]*)\u2013(?=[ \t]*[$.]?\d)")
"""A dash before a number that is its sign: "x = \u2013 4"."""
_NEGATIVE = re.compile(rf"(?:\bnegative|{_BEFORE_SIGN}[\s$*]*\bminus)[\s$*]*$", re.IGNORECASE)
_SIGN_APART = re.compile(
    rf"(\bnegative|{_BEFORE_SIGN}[\s*]*\bminus)\s+(?=[\d.])"
    rf"|((?!\A[ \t$*]*-){_BEFORE_SIGN}[ \t$*]*-)[ \t]+(?=[$\d.])|(\A\s*-)[ \t]+(?=[$\d.,/]+\W*\Z)",
    re.IGNORECASE,
)
"""A sign in words, or behind blanks, that belongs to its number: "is minus 4", "= - 4"."""
_NO_SIGN = re.compile(r"\bnot\s+positive\s+(?=[\d.])", re.IGNORECASE)
_NO_VALUE = re.compile(r"=|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_TERMS_ALONE = re.compile(r"\A[^\d]*[A-Za-z)]\s*[-+*/^]\s*[A-Za-z(][^\d]*\Z")
_FIGURE = r"\(*-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\)*"
_SIDE = rf"{_FIGURE}(?:[ \t]*(?:[-+*/x\u00d7\u00f7]|\\(?:times|cdot|div)\b)[ \t]*{_FIGURE})*"
_CHAIN = re.compile(rf"{_SIDE}(?:[\s$]*=[\s$]*{_SIDE})+\Z")
_OPERATED = re.compile(r"\d\)*[ \t]*(?:[-+*/x\u00d7\u00f7]|\\)")
_TIMES = re.compile(r"x|\u00d7|\\(?:times|cdot)")
_UNITS_APART = [Fraction(factor) for times in (12, 24, 60, 100, 1000) for factor in (times, Fraction(1, times))]
_BEFORE_CALCULATION = re.compile(
    r"(?:[-+*/^\u00d7\u00f7\u221a%!)\]}\d] *|\w[({]?|\\\w+ *"
    r"|\b(?:of|twice|double|half|triple|times|plus|minus|by|root|squared|sqrt|log|ln|sin|cos|tan) +)[$(]*\Z"
)
"""Signs and words before a calculation that belong to it, so that it is a part of another one."""
_OPERATOR = re.compile(r"[-+*/=\u00d7][\s$]*$")
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

    Examples: "it costs $1,234.50 in all." -> "1,234.50", "it is 4 or 5" -> "4 or 5", "it is not 5" -> "not 5",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "it is 3x+5" -> "3x+5", "The answer is x." -> "x"
    """
    text = without_remarks(_SIGN_APART.sub(_with_sign, _NO_SIGN.sub("not ", _as_marked(text))))
    return (
        _listed(text)
        or tries(text)
        or _said_formula(text)
        or _last_formula(text)
        or _last_number(text)
        or _said_words(text)
    )


def own_words(text: str) -> str:
    r"""The text without what it says of an answer key or a book, and without boxes that it denies.

    Examples: "24 (the key says 25)" -> "24 ", r"\boxed{5} is wrong" -> " ".
    """
    lowered = text.lower()
    text = _OF_A_KEY.sub(" ", text) if any(word in lowered for word in _A_KEY) else text
    return without_denied_boxes(text)


def _with_sign(sign: re.Match[str]) -> str:
    """Examples: "is minus " -> "is -", "= - " -> "= -"."""
    return f"{re.sub('(?:negative|minus|-)$', '', sign[sign.lastindex or 1], flags=re.IGNORECASE)}-"


def _as_marked(text: str) -> str:
    r"""The text with LaTeX for Unicode's fractions and powers, lone numbers without marks, and lists of formulas
    between one pair of marks. Examples: "3½" -> r"3\frac{1}{2}", "**5**" -> "5", "$a$ and $b$" -> "$a, b$"."""
    text = fractions_written_out(text).replace("\u2212", "-").replace("\u2044", "/").replace("\u2248", r"\approx ")
    text = _DASH.sub(r"\1-", text)
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


def _listed(text: str) -> str | None:
    """Several numbers and nothing else, in all of the text or in its last line: "24 | 25", "24? 25?"."""
    text = _BRACKET_OF_WORDS.sub("", text.strip())
    for part in (text, text.rpartition("\n")[2].rpartition(": ")[2]):
        if len(part) <= NEARBY and _SEVERAL.fullmatch(part) and read_number(part) is None:
            return ", ".join(NUMBER.findall(part))
    return None


def _said(text: str) -> tuple[str, str] | None:
    """The rest of the sentence behind the last "answer is", and what follows it."""
    said = deque(SAID.finditer(text), maxlen=1)
    if not said:
        return None
    sentence, *rest = SENTENCE_END.split(text[said[0].end() :], maxsplit=1)
    return sentence, rest[0] if rest else ""


def _said_formula(text: str) -> str | None:
    """Return the formula that a sentence calls the answer, if it is mathematics alone, not one of two ("4, or the
    answer is 5")."""
    place = deque(SAID.finditer(text), maxlen=1)
    if place and _BEFORE.search(text[max(0, place[0].start() - NEARBY) : place[0].end()].rstrip("$* \n") + " "):
        return None
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
    """Return the few words that a text without numbers calls the answer, or the number in words that it is: "The answer
    is Tuesday.", "Twenty-one"."""
    whole = text.strip(" \t\n.!*$")
    if number_in_words(whole) is not None:
        return whole
    said = (_said(text) or ("", ""))[0].strip('* \t"$')
    said = re.sub(r"\\text(?:bf|it)?\s*\{([^{}]*)\}", r"\1", said).strip()
    return said if re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+){0,5}", said) else None


def _last_number(whole_text: str) -> str | None:
    text = _NO_LAST.sub(lambda match: " " * len(match[0]), whole_text)
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    start, end = numbers[0].span()
    if (contradicted := _contradicted(text[max(0, end - 2 * NEARBY) : end])) is not None:
        return contradicted
    if (doubted := _QUESTIONED.search(text, max(0, start - NEARBY), start)) and text[end:].lstrip("$* ").startswith(
        "?"
    ):
        return f"{doubted[1]} or {text[start:end]}"  # 24? 25?
    contrast = next((one for one in _CONTRAST.finditer(text, max(0, start - NEARBY)) if one.end() >= end), None)
    if contrast is not None:
        start, end = contrast.span("meant")
    others = _SAME_NAME.search(text, max(0, start - NEARBY), start)
    formula = formula_around(text, start, end)
    if contrast is None and (whole := _with_approximation(text, *(formula[:2] if formula else (start, end)))):
        return whole
    if contrast is None and (explained := _explained(text, formula[0] if formula else start, end)):
        return explained
    if text[end : end + 1] == "!" and (factorial := _OF_FACTORIAL.search(text, max(0, start - NEARBY), end + 1)):
        return factorial[0].replace("$", "")
    if formula is None and (calculated := _CALCULATED.search(text, max(0, start - NEARBY), end)):
        return calculated[0].replace("$", "")
    start, end, said = formula or (start, end, text[start:end])
    if others is not None:
        values = NUMBER.findall(others[0].replace("$", " "))
        return ", ".join([*values, re.sub(rf"^{_NAMED}\s*", "", said)])
    denial = "not " if _DENIAL_BEHIND.match(text, end) else ""
    unit = "" if formula else unit_behind(whole_text, end)
    if (more := _MORE_OF_NUMBER.match(text, end)) and (more["magnitude"] or re.fullmatch(r"\d{1,2}:\d\d", said)):
        unit = more[0].rstrip()
    if _NEGATIVE.search(text, max(0, start - NEARBY), start) and not said.startswith("-"):
        said = f"-{said}"
    return denial + _hedge(text[max(0, start - NEARBY) : start], said) + said + unit


def _contradicted(text: str) -> str | None:
    """Return the chain of calculations at the end of a text if its last equation does not hold. Steps may be written
    on end, quotients and what holds decimals may be rounded, and the last number may be in another unit. Examples:
    "so 7 + 8 = 14 = 15" -> "7 + 8 = 14 = 15", "20 - 5 = 15 - 3 = 12", "10 / 3 = 3.3", "2 * 0.25 = 50" (cents) -> None
    """
    found = _CHAIN.search(text)
    before = "" if found is None else text[: found.start()].removesuffix("**")
    if found is None or _BEFORE_CALCULATION.search(before) or not _OPERATED.search(found[0]):
        return None
    calculation = re.sub("[$,]", "", found[0].removeprefix("(") if before.endswith("\\") else found[0])
    calculation = " ".join(calculation.split())
    *_, side, last = _TIMES.sub("*", re.sub(r"\\div|\u00f7", "/", calculation)).split("=")
    try:
        value, said = (
            evaluate(re.sub(r"\d*\.\d+", lambda part: f"({Fraction(part[0])})", one))[0] for one in (side, last)
        )
    except CalculationProblem:
        return None
    off = abs(value - said)
    if re.search(r"[/.]", side + last) and (off * 10 ** len(last.strip().partition(".")[2]) < 1 or off <= said / 50):
        return None
    return calculation if off and value not in (said * unit for unit in _UNITS_APART) else None


def _with_approximation(text: str, start: int, end: int) -> str | None:
    r"""A formula and its value, where the last number is only about that: "$3\sqrt{13}$ (approximately 10.82)"."""
    low = max(0, start - NEARBY)
    about = _ABOUT.search(text[low:start])
    before = deque(NUMBER.finditer(text, low, low + about.start()), maxlen=1) if about else None
    exact = formula_around(text, *before[0].span()) if before else None
    if about is None and (again := _AGAIN.search(text[low:start])) is not None:
        before = deque(NUMBER.finditer(text, low, low + again.start()), maxlen=1)
        exact, about = formula_around(text, *before[0].span()) if before else None, again
        if exact is None or _NO_VALUE.search(exact[2]):
            return None
    elif before and about and re.search("[a-z(]", about[0]) and not _OPERATOR.search(text[low : before[0].start()]):
        exact = exact or (*before[0].span(), before[0][0])
    if about is None or exact is None or text[exact[1] : low + about.start()].strip("$* "):
        return None
    return rf"{exact[2]} \approx {text[start:end].strip('$ ')}"


def _explained(text: str, start: int, end: int) -> str | None:
    """The answer before the bracket that holds the last number: "72 clips (48 in April, 24 in May)". A calculation in
    the bracket stays, since it has to hold."""
    low, depth = max(0, text.rfind("\n", 0, start) + 1, start - 2 * NEARBY), 0
    opens = None
    for at in range(start - 1, low - 1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth < 0:
            opens, depth = at, 0
    closes = text.find(")", end)
    before = _BEFORE_BRACKET.search(text, max(low, (opens or 0) - NEARBY), opens) if opens is not None else None
    if before is None or opens is None or closes < 0:
        return None
    is_sum = _SUM.fullmatch(text, opens, closes + 1)
    if not is_sum and _NO_EXPLANATION.match(text, opens + 1):
        return None
    formula, inner = formula_around(text, *before.span(1)), text[opens + 1 : closes]
    if formula is not None and NUMBER.fullmatch(inner):  # 3\sqrt{13} (10.82)
        return rf"{formula[2]} \approx {inner}"
    return (formula[2] if formula else before[1]) + (f" ({inner})" if is_sum else "")


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


def _hedge(before: str, said: str) -> str:
    """Return the words right before a number that make it one of several or deny it. Example: "so $4$ or $" -> "4 or
    "."""
    if (low := _RANGE.search(before)) and re.fullmatch(r"\d+(?:\.\d+)?", said) and float(low["low"]) < float(said):
        return f"{low['low']} to "
    hedge = _BEFORE.search(before.rstrip("$* \n") + " ")
    if hedge is None or ((hedge["range"] or hedge["sum"]) and _CHANGE.search(before, 0, hedge.start())):
        return ""
    return "not " if hedge["none"] else re.sub("[$*(]", "", hedge.group())
