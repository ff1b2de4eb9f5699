r"""Texts of answers in one form, as math-verify and `numbers` read them."""

import re
import unicodedata

_SIGNS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u2044": "/", "\u221e": r"\infty ", "\u2205": r"\emptyset ", "\u03c0": r"\pi ",
        "\u03b8": r"\theta ", "\u2248": r"\approx ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ",
        "\u00b1": r"\pm ", "\u00d7": r"\times ", "\u22c5": r"\cdot ", "\u00b7": r"\cdot ", "\u222a": r"\cup ",
        "\u2208": r"\in ", "\u211d": r"\mathbb{R}", "\u00b0": r"^\circ ", "\u00a0": " ",
    }
)  # fmt: skip
_SPACE = re.compile(r"(?<!\\)((?:\\\\)*)(?:\\[,;: ]|\\q?quad\b|~)")
_ROOT = re.compile(r"\u221a\s*(?:(\d+|[A-Za-z])|\(([^()]*)\))")
_CALLED = re.compile(r"(?<![\\A-Za-z])(?:sqrt\s*\((?P<root>[^()]*)\)|(?P<name>pi|ln|log)(?![A-Za-z]))")
_RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070\u2074-\u207b\u207f]+")
_FRACTION = re.compile(r"[\u00bc-\u00be\u2150-\u215e]")
_SIZES = re.compile(r"\\(?:left|right)\s*\.|\\(?:left|right|displaystyle|textstyle)(?![a-zA-Z])|\\!")
_COLOURED = re.compile(r"\\(?:textcolor|color)\s*\{[^{}]*\}|\\boxed(?=\s*\{)")
_FONT = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|hbox|operatorname|boldsymbol)\s*\{([^{}]*)\}"
)
_MARKS = re.compile(r"\$\$?(.*?)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\{([^{}]*)\}|\*\*(.*)\*\*", re.DOTALL)
_CHOICE = re.compile(r"^(?:\([A-H]\)|[A-H]\.)\s+(?=\S)")
_NO_UNIT = (
    r"(?!(?:\w*illion|thousand|hundred|dozen|percent|or|and|not|to|mod|pi|sqrt|sin|cos|tan|log|ln|exp|factorial|choose"
    r"|squared|cubed|over|plus|minus|times)s?\b)"
)
_SHORT = r"(?:[ckm]?m|k?g|mg|m?L|ml|ft|in|yd|mi|lbs?|oz|hrs?|mins?|mph|s|h)"
_UNIT = re.compile(
    r"(?:(?<=[\d}%)])|(?<=illion)|(?<=thousand)|(?<=hundred))(?:\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*[CF]?|\s*\\degree|\s*[\u20ac\u00a3]"
    rf"|(?:\s+{_NO_UNIT}[A-Za-z\u00b5]{{2,}}\.?(?:\s*/\s*[A-Za-z]+)?(?:\^\{{?-?\d\}}?)?){{1,4}}"
    rf"|(?:\s*{_SHORT}|\s+[A-Z])(?:/[A-Za-z]+)?(?:\^\{{?-?\d\}}?)?)$"
)
_TEXT_UNIT = re.compile(
    rf"(?<=[\d}})A-Za-z])\s*\\(?:text|textrm|mathrm|mbox)\s*\{{\s*(?![ie]\s*\}}){_NO_UNIT}"
    r"(?:(?:square|cubic|sq|cu)\.?\s+)?[A-Za-z]+(?:/[A-Za-z]+)?\s*\}(?:\s*\^\s*\{?-?\d\}?)?[.\s$]*$"
)
_HALF = re.compile(r"\^\s*\{\s*0?\.5\s*\}")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])\s*")
_ROW_GAP = re.compile(r"\\\\\s*\[[^\[\]]*\]")
_MEMBER = re.compile(r"^\s*\\?[a-zA-Z]+\s*\\in\b\s*")
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d+)")
MODULUS = re.compile(r"\s*(?:\(\s*)?\\?(?:p|b)?mod(?:ulo)?\b\s*\{?\s*(?P<of>\w+)\s*\}?\s*\)?\s*$")
BOUNDS = re.compile(r"(?<!-)[<>](?!-)|\\(?:leq?|geq?|lt|gt|leqslant|geqslant)\b")


def normalized(text: str) -> str:
    r"""The text without decoration: LaTeX's commands for Unicode's signs, no sizes, colours, fonts and marks of
    formulas, angle brackets made round, and no letter of a choice before a value.

    Examples: r"$2\left(x\right)$" -> "2(x)", "2\u221a3" -> r"2\sqrt{3}", r"\textbf{(B)}\ 12" -> "12", "1e-7" ->
    r"1 \times 10^{-7}"
    """
    text = _SPACE.sub(r"\1 ", _SIZES.sub("", _COLOURED.sub("", written_out(text))))
    text = re.sub(r"\\[dt]frac\b", r"\\frac", text).replace(r"\varnothing", r"\emptyset")
    text = _PLUS_MINUS.sub(r"\\pm ", _ROW_GAP.sub(r"\\\\", text))
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
    unit = _TEXT_UNIT.search(text)
    if unit is not None and any(map(str.isdigit, text[: unit.start()])):  # 10\pi \text{ cm}^2
        text = text[: unit.start()] + "$" * unit[0].count("$")
    text = _HALF.sub(r"^{\\frac{1}{2}}", text)
    text = _MEMBER.sub("", _FONT.sub(r"\1", text)).strip()
    while (marked := _MARKS.fullmatch(text.rstrip(".,; "))) is not None:
        text = marked[marked.lastindex or 0].strip()
    text = _CHOICE.sub("", text if text.endswith("..") else text.rstrip(".,; "))
    return _EXPONENT.sub(r"\1 \\times 10^{\2}", text)


def written_out(text: str) -> str:
    r"""The text with LaTeX's commands in place of Unicode's signs, of "sqrt(...)" and of names such as "pi".

    Examples: "2\u221a3" -> r"2\sqrt{3}", "x\u00b2" -> "x^{2}", "2 \u00bd" -> r"2 \frac{1}{2}"
    """
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = _FRACTION.sub(
        lambda match: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", match[0]).split("\u2044")), text
    )
    text = _CALLED.sub(lambda match: rf"\sqrt{{{match['root']}}}" if match["root"] else rf"\{match['name']} ", text)
    return text.translate(_SIGNS)


def without_unit(text: str) -> str:
    r"""The text without words or a unit behind a number. Examples: "72 paper clips" -> "72", r"30^\circ" -> "30"."""
    return _UNIT.sub("", text)


def same_words(one: str, other: str) -> bool:
    """True if two texts differ only in blanks, and words of three letters or more in capitals. A letter in brackets is
    that letter.

    Examples: "x + 1" and "x+1" are the same, "(B)" and "B", "Yes" and "yes"; "2 5" and "25" are not.
    """
    texts = [re.sub(r"_\{(\w)\}", r"_\1", text) for text in (one, other)]
    texts = [re.sub(r"(?<!\d)\s+|\s+(?!\s|\d)", "", text) for text in texts]
    texts = [text[1] if re.fullmatch(r"\([A-J]\)", text) else text for text in texts]
    return texts[0] == texts[1] or (
        texts[0].lower() == texts[1].lower() and re.fullmatch("[A-Za-z]{3,}", texts[0]) is not None
    )


def split(text: str, marks: re.Pattern[str]) -> list[str]:
    """Parts of the text between matches of `marks` that are outside of brackets and environments."""
    parts, start, depth = list[str](), 0, 0
    for token in re.finditer(rf"\\begin\b|\\end\b|\\[{{}}]|[([{{]|[)\]}}]|{marks.pattern}", text):
        if token[0] in ("\\begin", "\\{", "(", "[", "{"):
            depth += 1
        elif token[0] in ("\\end", "\\}", ")", "]", "}"):
            depth = max(0, depth - 1)
        elif depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    return [part for part in (*parts, text[start:].strip()) if part]
