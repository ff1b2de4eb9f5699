r"""Texts of answers: without what says nothing around them, and in the parts that they consist of."""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

from roll.utils.answers.calculations import CalculationProblem, evaluate

_WRITTEN_OUT = {  # signs that LaTeX has commands for
    "\u221e": r"\infty ", "\u2205": r"\emptyset ", "\u03c0": r"\pi ", "\u03b8": r"\theta ", "\u2212": "-",
    "\u2248": r"\approx ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u00b1": r"\pm ",
    "\u00d7": r"\times ", "\u22c5": r"\cdot ", "\u00b7": r"\cdot ", "\u00f7": r"\div ", "\u222a": r"\cup ",
    "\u2208": r"\in ", "\u211d": r"\mathbb{R}", "\u2044": "/",
}  # fmt: skip
_SIGNS = str.maketrans(_WRITTEN_OUT)
_FRACTION = re.compile(r"(?:(?<=\d)\s+)?([\u00bc-\u00be\u2150-\u215e\u2189])")
_RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070\u2074-\u207b\u207f]+")
_ROOT = re.compile(r"\u221a\s*(?:(\d+|[A-Za-z])|\(([^()]*)\)|\{([^{}]*)\})")
_CALLED_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
_CALLED_PI = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])")
_COLOURED = re.compile(r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}\s*\{([^{}]*)\}")
TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|hbox|operatorname)\s*\{([^{}]*)\}")
SPACE = re.compile(r"(?<!\\)((?:\\\\)*)(?:\\[,;: ]|\\(?:thin|med|thick|en)space\b)")
"""A blank of LaTeX, behind breaks of rows: of "\\\\ 3" the blank is no command. Goes with `SPACED`."""
SPACED = r"\1 "
BOUNDS = re.compile(r"(?<!-)[<>](?!-)|\\(?:leq?|geq?|lt|gt|leqslant|geqslant|ll|gg|prec|succ)\b|[\u2264\u2265]")
BOUND_IN_WORDS = (
    r"\b(?:at\s+(?:least|most)|(?:more|less|fewer|greater|larger|smaller|higher|lower)\s+than"
    r"(?:\s+or\s+equal\s+to)?|exceed(?:s|ing)?)"
)
MEMBER_OF = re.compile(r"^\s*\$?\s*\\?[a-zA-Z]+\s*(?:\\in\b|\u2208)\s*")
_JOINED = r"\s*(?:,\s*)?(?:\\(?:text|mathrm|textrm|mbox)\s*\{{\s*(?:{0})\s*\}}|\b(?:{0})\b)\s*"
_ROW_BREAK = re.compile(r"(?:\\\\\s*)*\\\\(?:\[\s*-?[\d.]+\s*(?:pt|em|ex|in|mu|[cm]m)\s*\])?")
_SPACES_AROUND = re.compile(r"^(?:\s|\\[,;:! ]|\\q?quad\b)+|(?<!\\)(?:\s|~|\\[,;:! ]|\\q?quad\b)+$")
_BLANKS = re.compile(r"(?<!\d)\s+|\s+(?!\s|\d)")  # but for one of two numbers
_FULL_STOP = re.compile(r"(?<![.\\])\.$")
_CHANCE = re.compile(
    r"^(?:P|\\?Pr|\\(?:mathbb|mathrm|text)\{P(?:r)?\})\s*(?:\\left)?[(\[][^()\[\]]*(?:\\right)?[)\]]\s*=\s*(?=[^=]+$)"
)
_LETTERED = re.compile(
    r"^\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*\([A-F]\)\s*\}(?:\s|~|\\[,;:! ]|\\q?quad\b)*(?=\S)"
)
"""The letter of a choice before its value: \\textbf{(B)}\\ 12."""
_SHOWN = re.compile(
    r"(?P<value>[-+]?\$?\d[\d,]*(?:\.\d+)?)(?P<unit>(?:(?:\s|\\ |~)+[A-Za-z]+|\s*\\text\s*\{[A-Za-z ]*\}){0,3})"
    r"(?:\s|\\ |~)+\(\s*=?(?P<sum>(?:[\d\s+*/x()$,\u00d7-]|\\times|\\cdot)+)\)(?P<behind>(?:\s+[A-Za-z]+){0,3})"
)
"""A value and the calculation that it is the sum of: 72 (48 + 24) clips."""
_NO_UNIT = (
    r"(?:(?:[mbtr]|qu\w)+illion|thousand|hundred|dozen|percent|or|and|not|nor|but|to|mod(?:ulo)?|squared|cubed|factorial"
    r"|times|plus|minus|over|choose|point|half|halves|thirds?|quarters?|base|root|sqrt|pi|sin|cos|tan|log|ln|exp|if|for|when"
    r"|where|versus|vs|through|until|maybe|perhaps|than|less|more|fewer|greater|at|most|least|about|is|are)s?"
)
_COUNTED = re.compile(
    rf"(\\?\$?[-+]?\d[\d.,]*(?:\s?/\s?\d+)?)(?:\s+(?!{_NO_UNIT}\b)[A-Za-z]{{3,}}){{1,4}}", re.IGNORECASE
)
_ROUNDED = re.compile(
    r"(?P<exact>.*?\S)\s*,?\s*(?:\\text\s*\{)?\s*\(?(?:or\s+)?(?:about|approximately|approx\.?|roughly)\s*\}?\s*(?P<value>\$?-?\d[\d.,]*)\s*\)?\}?"
)
"""An exact value and about what it is: "2\\sqrt{5} (about 4.47)"."""
_CONSTANT = re.compile(r"\+\s*(?:[CcKk](?:_\{?\d\}?)?|\\text\s*\{\s*(?:constant|const\.?|C)\s*\})\s*$")
_FUNCTION = re.compile(r"\s*([A-Za-z])\s*\(\s*([A-Za-z])\s*\)\s*=")
_NAMED_VALUE = re.compile(r"([A-Za-z])\s*=\s*([^=,<>]+)")
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")
_WHOLE_AND_PART = re.compile(
    r"([-+]?\d+)\s*(?:\\text\s*\{\s*and\s*\}|and)\s*((?!0)\d+/\d+|\\[dt]?frac(?:\{\d+\}\{\d+\}|\d\d))"
)
_ORDINAL = re.compile(r"(?<=\d)\s*\^?\s*\{?\s*(?:\\(?:text|textrm|mathrm)\s*\{\s*)?(?:st|nd|rd|th)[\s}]*$")
_TIMES = re.compile(r"x|\u00d7|\\times|\\cdot")
_ANGLE = re.compile(r"\\langle\b|\u27e8|(?P<right>\\rangle\b|\u27e9)")
_POINTED = re.compile(r"(?:[A-Za-z]\s*=\s*)?(?:\\left\s*)?<(?=[^<>]*,)(?P<inside>[^<>]*?)(?:\\right\s*)?>")
_LN = re.compile(
    r"\\(?:text|mathrm|operatorname)\s*\{\s*ln\s*\}|(?<![\\A-Za-z])ln(?![A-Za-z])|\\log\s*_\s*(?:e|\{\s*e\s*\})(?![A-Za-z])"
)
_LG = re.compile(r"\\(?:text|mathrm|operatorname)\s*\{\s*lg\s*\}|\\lg(?![A-Za-z])")
_LOG = re.compile(r"\\(?:text|mathrm|operatorname)\s*\{\s*log\s*\}|(?<![\\A-Za-z])log(?![A-Za-z])|\\log(?![A-Za-z])")
_NO_BASE = re.compile(r"\\log(?!\s*_)")
_TENDS = re.compile(r"(_\s*\{[^{}]*?)(?:\\(?:long)?rightarrow\b|\u2192)")
_NO_SOLUTION = re.compile(
    r"\s*(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+|such\s+)?(?:solutions?|roots?|values?)(?:\s+exists?)?\s*",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"\s*(\d{1,2})\s*:\s*(\d\d)\s*(?:([ap])\.?\s?m\.?)?\s*", re.IGNORECASE)
_INDEX = re.compile(r"(?<=[A-Za-z])_\{?(\d+)\}?")
_OUTWARD = re.compile(r"(?P<opens>[\[\]])(?P<inside>[^\[\](),;]+[,;][^\[\](),;]+)(?P<closes>[\[\]])")
_ARTICLE = re.compile(r"^\s*(?:an?|the)\s+(?=[A-Za-z]{3,})", re.IGNORECASE)
_ACCENT = re.compile(r"\\(?:vec|hat|bar|tilde|dot|overline|overrightarrow|boldsymbol|bm)\s*\{?\s*([A-Za-z]+)\s*\}?")


def fractions_written_out(text: str) -> str:
    r"""The text with `\frac` in place of Unicode's fractions. Example: "2\u00bd" and "2 \u00bd" -> r"2\frac{1}{2}"."""
    return _FRACTION.sub(lambda match: r"\frac{{{}}}{{{}}}".format(*_plain(match[1]).split("\u2044")), text)


def powers_written_out(text: str) -> str:
    """Example: "10\u00b9\u00b2" -> "10^{12}"."""
    return _RAISED.sub(_as_power, text)


def _plain(signs: str) -> str:
    return unicodedata.normalize("NFKC", signs).replace("\u2212", "-")


def _as_power(match: re.Match[str]) -> str:
    power = _plain(match[0])
    return f"^{power}" if len(power) == 1 else f"^{{{power}}}"


def written_out(text: str) -> str:
    r"""The text with LaTeX's commands in place of Unicode's signs, and without colours.

    Examples: "2\u221a3" and "2sqrt(3)" -> r"2\sqrt{3}", "x\u00b2" -> "x^2", "2\u00bd" -> r"2\frac{1}{2}",
    r"\textcolor{red}{5}" -> "5"
    """
    text = powers_written_out(fractions_written_out(text))
    text = _CALLED_ROOT.sub(r"\\sqrt{\1}", _CALLED_PI.sub(r"\\pi ", text))
    text = _COLOURED.sub(r"\1", text.translate(_SIGNS).replace(r"\varnothing", r"\emptyset"))
    return _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2] or match[3]}}}", text).strip()


def normalized(text: str) -> str:
    r"""The text in the form that the parser gets. `x \in S` is S, `1 or 2` is `1, 2`, 1e-7 is 1 \times 10^{-7}."""
    text = SPACE.sub(SPACED, MEMBER_OF.sub("", without_sizes(_ROW_BREAK.sub(r"\\\\", text))))
    if not BOUNDS.search(text):
        text = re.sub(_JOINED.format("or|and"), ", ", text)
    return re.sub(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d+)", r"\1 \\times 10^{\2}", text)


def trimmed(text: str) -> str:
    r"""The text without decoration around it: LaTeX's spaces, a full stop, a font, the letter of a choice before its
    value, `P(X = 2) =`. Angle brackets become round ones, \log_e and ln become \ln.

    Examples: r"\,5\," -> "5", r"\text{5 apples}" -> "5 apples", r"P(A \cap B) = 1/4" -> "1/4",
    r"\textbf{(B)}\ 12" -> "12"
    """
    text = _ANGLE.sub(lambda match: ")" if match["right"] else "(", written_out(text))
    text = _LG.sub(r"\\log_{10} ", _LN.sub(r"\\ln ", _TENDS.sub(r"\1\\to ", text)))
    text = text[1:] if text.startswith("~") and text.rstrip().endswith("~") else text
    text = _LETTERED.sub("", _FULL_STOP.sub("", _SPACES_AROUND.sub("", text + " ")))
    text = _ORDINAL.sub("", text)
    whole = TEXT.fullmatch(text)
    if whole is not None and re.search(r"\d", whole[1]):
        text = whole[1].strip()
    if (pointed := _POINTED.fullmatch(text)) is not None:  # <1, 2>
        text = f"({pointed['inside']})"
    if (rounded := _ROUNDED.fullmatch(text)) is not None:
        text = rf"{rounded['exact']} \approx {rounded['value']}"
    if _NO_SOLUTION.fullmatch(TEXT.sub(r"\1", text)):
        text = r"\emptyset"
    if (outward := _OUTWARD.fullmatch(text)) is not None:  # ]0, 1[ and [0; 1]
        inside = outward["inside"].replace(";", ",")
        text = f"{'[' if outward['opens'] == '[' else '('}{inside}{']' if outward['closes'] == ']' else ')'}"
    return _CHANCE.sub("", _without_calculation(text))


def _without_calculation(text: str) -> str:
    """Example: "72 (48 + 24) clips" -> "72 clips". A calculation of another value stays: 2 (3 + 4) is a product."""
    shown = _SHOWN.fullmatch(text)
    if shown is None:
        return text
    try:
        value, _ = evaluate(re.sub("[$,]", "", _TIMES.sub("*", shown["sum"])))
    except CalculationProblem:
        return text
    is_it = value == Fraction(shown["value"].replace(",", "").replace("$", ""))
    return f"{shown['value']}{shown['unit']}{shown['behind']}" if is_it else text


def alike(truth: str, answer: str) -> str:
    r"""The answer in the words of the truth: its constant of integration, the argument of its function, a whole number
    and a fraction for a mixed number, and India's commas.

    Examples: ("x^2 + C", "x^2 + K") -> "x^2 + C", ("f(x) = 2x", "f(t) = 2t") -> "f(x) = 2x", ("7/2", "3 and 1/2") ->
    "3 1/2", ("1234567", "12,34,567") -> "1234567", ("y = 2x", "f(x) = 2x") -> "y = 2x"
    """
    named = [_NAMED_VALUE.fullmatch(part.strip()) for part in said_again(answer)]
    if truth.lstrip(" $").startswith(r"\{") and len(named) > 1 and len({one and one[1] for one in named} - {None}) == 1:
        return r"\{" + ", ".join(one[2] for one in named if one is not None) + r"\}"
    if _CONSTANT.search(truth) is not None:
        return _CONSTANT.sub("+C", answer)
    called = _FUNCTION.match(truth), _FUNCTION.match(answer)
    if called[0] is not None and called[1] is not None and called[0][1] == called[1][1]:
        return re.sub(rf"(?<![\\A-Za-z]){called[1][2]}(?![A-Za-z])", called[0][2], answer)
    if called[1] is not None and re.match(rf"\s*y\s*=.*{called[1][2]}", truth):
        return f"y = {answer[called[1].end() :]}"
    if called[0] is not None and re.match(rf"\s*y\s*=.*{called[0][2]}", answer):
        return truth[: called[0].end()] + answer.partition("=")[2]
    if _INDIAN.fullmatch(answer) and "," not in truth:
        return answer.replace(",", "")
    mixed = _WHOLE_AND_PART.fullmatch(answer)
    return f"{mixed[1]} {mixed[2]}" if mixed is not None and not re.search(r",|\b(?:and|or)\b", truth) else answer


def without_unit(text: str) -> str:
    """The text without the words behind a number. Example: "72 paper clips" -> "72"."""
    counted = _COUNTED.fullmatch(text)
    return text if counted is None else counted[1]


def logs_alike(truth: str, answer: str) -> tuple[str, str]:
    r"""Both with natural logarithms, if one of them has \ln alone and the other \log alone.

    A \log without a base is that of 10, as math-verify reads it; beside an \ln it is the natural one, as calculus and
    number theory write it. Example: (r"2\ln 3", r"\log 9") -> (r"2\ln 3", r"\ln 9")
    """
    texts = [_LOG.sub(r"\\log ", text) for text in (truth, answer)]
    natural, common = ([sign in text for text in texts] for sign in (r"\ln", r"\log"))
    if natural[0] == natural[1] or common[0] == common[1] or natural[0] == common[0]:
        return truth, answer
    truth, answer = (_NO_BASE.sub(r"\\ln", text) for text in texts)
    return truth, answer


def same_words(one: str, other: str) -> bool:
    r"""True if two texts differ only in fonts and spaces; words such as "no solution" may also differ in capitals.

    Examples: "x + 1" and "x+1" do, "2 5" and "25" do not.
    """
    texts = [_ARTICLE.sub("", TEXT.sub(r"\1", text.replace(r"\!", ""))) for text in (one, other)]
    if (times := _times(*texts)) is not None:
        return times
    texts = [_INDEX.sub(r"\1", _BLANKS.sub("", text)) for text in texts]
    if texts[0] == texts[1]:
        return True
    return texts[0].lower() == texts[1].lower() and re.fullmatch(r"[A-Za-z]{4,}", texts[0]) is not None


def _times(one: str, other: str) -> bool | None:
    """Whether two times of day are one; None where a text is none, or neither says a.m. or p.m."""
    clocks = [_CLOCK.fullmatch(text) for text in (one, other)]
    if clocks[0] is None or clocks[1] is None or not (clocks[0][3] or clocks[1][3]):
        return None
    minutes = [(int(clock[1]) % 12 if clock[3] else int(clock[1]), clock[2], clock[3]) for clock in clocks if clock]
    hours = [hour + 12 * ((half or "a").lower() == "p") for hour, _, half in minutes]
    is_same_figure = None in (clocks[0][3], clocks[1][3]) and int(clocks[0][1]) == int(clocks[1][1])
    return clocks[0][2] == clocks[1][2] and (hours[0] == hours[1] or is_same_figure)


def bounds_joined_by(word: str, text: str) -> list[str]:
    """Example: "or", "x < 1 or x > 2" -> ["x < 1", "x > 2"]. All of the text where it has no bounds."""
    return re.split(_JOINED.format(word), text) if BOUNDS.search(text) else [text]


def said_again(text: str) -> list[str]:
    r"""The forms of one value, if that is what an answer gives. Example: r"\frac34 or 0.75" -> [r"\frac34", "0.75"]."""
    return [part for part in re.split(_JOINED.format("or"), text) if part.strip(" ,$")]


def chain(text: str) -> tuple[list[str], bool]:
    r"""The parts between equals signs outside of brackets, and whether some are only about equal.

    Example: r"x = \frac{1}{3} \approx 0.33" -> (["x", r"\frac{1}{3}", "0.33"], True)
    """
    is_about = re.search(r"\\approx|\\simeq|\u2248", text) is not None
    marked = re.sub(r"\\approx|\\simeq|\\equiv|\u2248|:=|==", "=", text)
    marked = re.sub(r"\\p?mod\s*\{?\s*\d+\s*\}?|\\pmod\s*\{[^{}]*\}", "", marked) if r"\equiv" in text else marked
    return [part.strip() for part in split(marked, "=") if part.strip()], is_about


def is_name(text: str) -> bool:
    r"""Tell whether the text can be given a value: x, x_1, f(x), \theta, \angle ABC, "The area"."""
    text = _ACCENT.sub(r"\1", TEXT.sub(r"\1", text)).strip(" ${}")
    if re.fullmatch(r"\(\s*\\?[A-Za-z]+(?:\s*,\s*\\?[A-Za-z]+)+\s*\)", text):  # (r, \theta)
        return True
    return re.fullmatch(
        r"(?:\\[A-Za-z]+\s*)?[A-Za-z']*(?:_\{?\w+\}?)?'*\s*(?:\([A-Za-z0-9, ]*\))?", text
    ) is not None or (re.fullmatch(r"[A-Za-z' ]+", text) is not None)


def without_sizes(text: str) -> str:
    r"""The text without `\left`, `\right` and styles, which only change how large a formula is drawn."""
    return re.sub(r"\\(?:left|right)\s*\.|\\(?:left|right)(?![a-zA-Z])|\\(?:displaystyle|textstyle)\b\s*", "", text)


def split(text: str, mark: str) -> Iterator[str]:
    """Parts of the text between marks outside of brackets. `<=`, `>=` and `!=` are not split at =."""
    depth, start = 0, 0
    for at, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth = max(0, depth - 1)
        elif sign == mark and depth == 0 and not (mark == "=" and at and text[at - 1] in "<>!"):
            yield text[start:at]
            start = at + 1
    yield text[start:]
