r"""What an answer says beside its value: whether it names one where one is asked, and what its chain of equals holds.

A parser makes a value of nearly anything: \neq 7 is read as 7, 4 \to 5 and 4 | 5 as 5. Here such answers are found in
the text, before anything is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from roll.utils.math_numbers import read_number, written_out

_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|hbox|operatorname)\s*\{([^{}]*)\}")
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\?\w)")
_MEMBER_OF = re.compile(r"^\s*\$?\s*\\?[a-zA-Z]+\s*(?:\\in\b|\u2208)\s*")
_JOINED = r"\s*(?:,\s*)?(?:\\(?:text|mathrm|textrm|mbox)\s*\{{\s*(?:{0})\s*\}}|\b(?:{0})\b)\s*"
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SPACE = re.compile(r"\\[,;: ]|\\(?:thin|med|thick|en)space\b")
_ROW_GAP = re.compile(r"\\\\\[\s*-?[\d.]+\s*(?:pt|em|ex|[cm]m)\s*\]")
_SPACES_AROUND = re.compile(r"^(?:\s|\\[,;:! ]|\\q?quad\b)+|(?<!\\)(?:\s|~|\\[,;:! ]|\\q?quad\b)+$")
_BEFORE_DIGIT = re.compile(r"\\[A-Za-z]+(?=\d)")
_FULL_STOP = re.compile(r"(?<![.\\])\.$")
_CHANCE = re.compile(
    r"^(?:P|\\?Pr|\\(?:mathbb|mathrm|text)\{P(?:r)?\})\s*(?:\\left)?[(\[][^()\[\]]*(?:\\right)?[)\]]\s*=\s*(?=[^=]+$)"
)
_LETTERED = re.compile(
    r"^\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*\([A-F]\)\s*\}(?:\s|~|\\[,;:! ]|\\q?quad\b)*(?=\S)"
)
"""The letter of a choice before its value: \\textbf{(B)}\\ 12."""
_ANGLES = str.maketrans({"\u27e8": "(", "\u27e9": ")"})
_FUNCTIONS = r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|mod|gcd|lcm|max|min|arcsin|arccos|arctan|frac)"

STRICT = {
    "not": r"\\neq?\b|\\neg\b|\\lnot\b|\\not(?![a-z])|\\not\\|\u2260|\u00ac|!="
    r"|\b(?:not|never|neither|nor|except|isn't|no)\b",
    "arrow": r"\\(?:long)?(?:left)?(?:right)?arrow\b|\\(?:Long)?(?:Left)?(?:Right)arrow\b|\\to\b|\\gets\b|\\mapsto\b"
    r"|\\implies\b|\\iff\b|[\u2190-\u21ff]|->|=>|<-",
    "divides": r"\\n?mid\b|\\divides\b|\d\s*(?:\||\\vert\b|\\parallel\b|\\\|)\s*\d",
    "struck": r"\\[xb]?cancel\b|\\sout\b|\\h?phantom\b|\\tag\b|\\(?:stackrel|overset|underset)\b",
    "logic": r"\\(?:lor|vee|land|wedge|oplus|perp|sim|cong|propto|asymp|bowtie|ominus)\b|[\u2227\u2228]|&&|~(?=\s*\d)",
}
"""An answer that says these says something else than a ground truth that does not."""
SEVERAL = {
    "joined": r"\b(?:or|and|either|both|versus|vs)\b|[;&]|\\\\|\\begin\{(?:cases|array|aligned|gathered|align\*?)\}",
    "spaced": r"\d\s*(?:\\[,;: ]|\\q?quad\b|~|\s)\s*(?:\\[,;: ]|\\q?quad\b|~|\s)*[-+]?[.\d]",
    "dots": r"\.\.\.|\\[lcv]?dots[cb]?\b|\u2026|\d\.\.\d",
    "signs": r"\\pm\b|\\mp\b|\u00b1|\u2213|\+/-|\+-",
    "sets": r"\\(?:big)?(?:cup|cap)\b|\\setminus\b|\\backslash\b|\\sqcup\b|[\u222a\u2229]",
    "bounds": r"(?<!-)[<>](?!-)|\\(?:leq?|geq?|lt|gt|leqslant|geqslant|ll|gg|prec|succ)\b|[\u2264\u2265]",
    "member": r"\\(?:not)?in\b|\\ni\b|\\subset(?:eq)?\b|\u2208",
}
_STRICT = {name: re.compile(pattern) for name, pattern in STRICT.items()}
_SEVERAL = {name: re.compile(pattern) for name, pattern in SEVERAL.items()}
_WORDED = re.compile(
    rf"(?<![\^\d.])\d[\d.,]*\s*(?!{_FUNCTIONS}\b)[A-Za-z]{{2,}}[^\d^=]*(?<![\^\d.{{]){_FUNCTIONS}?\s*\d"
)
_KNOWN = re.compile(
    r"\\(?:[dtc]?frac|sqrt|cdot|times|div|pi|left|right|[bB]ig[lr]?|text(?:rm|bf|it|style|color)?|math(?:rm|bf|it|sf|bb|cal)"
    r"|mbox|operatorname|boldsymbol|bm|displaystyle|circ|deg|degree|infty|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg"
    r"|exp|[dt]?binom|choose|sum|prod|int|lim|inf|limits|to|[pb]?mod|equiv|[lr](?:floor|ceil|vert|brace|brack|paren)|vert"
    r"|max|min|gcd|lcm|det|Gamma|zeta|theta|alpha|beta|gamma|(?:var)?phi|overline|bar|dot|approx|simeq|f?boxe?d?|q?quad"
    r"|color(?:box)?|underline|begin|end|in|ldots|angle|triangle|imath|Re|Im|arg|over|square|sf|rm|bf|it|[hv]space"
    r"|(?:var)?(?:[Dd]elta|epsilon|eta|iota|kappa|[Ll]ambda|mu|nu|[Xx]i|Pi|rho|[Ss]igma|tau|[Uu]psilon|Phi|chi|[Pp]si"
    r"|[Oo]mega|Theta)|ell|hbar|jmath|nabla|partial|vec|(?:wide)?(?:hat|tilde)|over(?:right)?arrow|overrightarrow|ddot"
    r"|lVert|rVert|Vert|lvert|rvert|norm|deg|dim|ker|rank|tr|Pr|mathop|textsf|texttt|textup|mathtt|emph|therefore"
    r"|checkmark|(?:foot|script)?size|tiny|small|normalsize|large|Large|LARGE|[hH]uge|(?:thin|med|thick|en)space)"
)
"""Commands that may stand in a number, or around it."""


def names_other_than_one_value(truth: str, answer: str) -> bool:
    r"""True where the answer cannot mean what the truth means, whatever their values are: it denies, orders or
    enumerates, and the truth does not.

    Examples for the truth 7: r"\neq 7", "4 or 7", "0 | 7", r"6\ 7", r"\pm 7", "7, 8", "7 to 9".
    """
    wanted, given = _plain_text(truth), _plain_text(answer)
    if any(pattern.search(given) and not pattern.search(wanted) for pattern in _STRICT.values()):
        return True
    if not is_one_value(wanted) or re.search(r"[([{].*,.*[)\]}]", wanted, re.DOTALL):
        return False
    return not is_one_value(given) or (bool(re.search(r"\d", wanted)) and _has_unknown_sign(answer, truth))


def is_one_value(text: str) -> bool:
    """True unless it is a list, a range, a set, or several numbers with words between."""
    # the comma and the semicolon of a space divide nothing
    text = _BEFORE_DIGIT.sub(r"\g<0> ", _SPACE.sub(" ", text))
    if any(pattern.search(text) for pattern in _SEVERAL.values()):
        return False
    return len([part for part in _split(text, ",") if _is_value(part)]) < 2 and _WORDED.search(_bare(text)) is None


def normalized(text: str) -> str:
    r"""As the parser is given it. `x \in S` is S, `1 or 2` is `1, 2`, 1e-7 is 1 \times 10^{-7}."""
    text = _SPACE.sub(" ", _MEMBER_OF.sub("", _without_sizes(_ROW_GAP.sub(r"\\\\", text))))
    if not _SEVERAL["bounds"].search(text):
        text = re.sub(_JOINED.format("or|and"), ", ", text)
    return re.sub(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d+)", r"\1 \\times 10^{\2}", text)


def trimmed(text: str) -> str:
    r"""Without what says nothing around it: spaces of LaTeX, a full stop, a font, the letter of a choice before its
    value, `P(X = 2) =`. Angle brackets are round ones.

    Examples: r"\,5\," -> "5", r"\text{5 apples}" -> "5 apples", r"P(A \cap B) = 1/4" -> "1/4",
    r"\textbf{(B)}\ 12" -> "12"
    """
    text = re.sub(r"\\langle\b", "(", re.sub(r"\\rangle\b", ")", written_out(text).translate(_ANGLES)))
    text = _LETTERED.sub("", _FULL_STOP.sub("", _SPACES_AROUND.sub("", text + " ")))
    whole = _TEXT.fullmatch(text)
    if whole is not None and re.search(r"\d", whole[1]):
        text = whole[1].strip()
    return _CHANCE.sub("", text)


def same_words(one: str, other: str) -> bool:
    r"""Whether they differ in fonts and spaces alone; of words, as "no solution", in capitals alone."""
    texts = ["".join(_TEXT.sub(r"\1", text).split()) for text in (one, other)]
    if texts[0] == texts[1]:
        return True
    return texts[0].lower() == texts[1].lower() and re.fullmatch(r"[A-Za-z]{4,}", texts[0]) is not None


def alternatives(text: str) -> list[str]:
    """The bounds of which one holds. Example: "x < 1 or x > 2" -> ["x < 1", "x > 2"]."""
    return re.split(_JOINED.format("or"), text) if _SEVERAL["bounds"].search(text) else [text]


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
    return [part.strip() for part in _split(marked, "=") if part.strip()], is_about


def is_name(text: str) -> bool:
    r"""What is given a value: x, x_1, f(x), \theta, \angle ABC, "The area"."""
    text = _TEXT.sub(r"\1", text).strip(" ${}")
    return re.fullmatch(
        r"(?:\\[A-Za-z]+\s*)?[A-Za-z']*(?:_\{?\w+\}?)?'*\s*(?:\([A-Za-z0-9, ]*\))?", text
    ) is not None or (re.fullmatch(r"[A-Za-z' ]+", text) is not None)


def _plain_text(text: str) -> str:
    if read_number(text) is not None:
        return "0"
    text = re.sub(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))", "", _MEMBER_OF.sub("", _without_sizes(text)))
    text = _SUBSCRIPT.sub("", text.replace(r"\!", ""))
    return re.sub(
        r"\\begin\{[bpvBV]?(?:small)?matrix\}.*\\end\{[bpvBV]?(?:small)?matrix\}",
        "(1,2)",
        _TEXT.sub(r" \1 ", text),
        flags=re.DOTALL,
    )


def _without_sizes(text: str) -> str:
    return re.sub(r"\\(?:left|right)\s*\.|\\(?:left|right)(?![a-zA-Z])|\\(?:displaystyle|textstyle)\b\s*", "", text)


def _bare(text: str) -> str:
    return _COMMAND.sub(" ", text)


def _is_value(part: str) -> bool:
    part = _bare(part).strip(" ${}().")
    return bool(re.search(r"\d", part)) or re.fullmatch(r"[A-Za-z]", part) is not None or "\\" in part


def _has_unknown_sign(answer: str, truth: str) -> bool:
    """A command or a sign that has no place in a number, and is not in the truth either."""
    commands = {found for found in _COMMAND.findall(answer) if not _KNOWN.fullmatch(found)}
    signs = set(
        re.findall(
            r"[@#?_`\"]|[^\x00-\x7f\u00b0\u03c0\u221a\u221e\u00d7\u00f7\u22c5\u00b7\u2212\u20ac\u00a3\u00a5]",
            _SUBSCRIPT.sub("", answer),
        )
    )
    return (
        any(found not in truth for found in commands | signs)
        or re.search(r"\d\s*\\?%\s*[\dA-Za-z]", answer) is not None
    )


def _split(text: str, mark: str) -> Iterator[str]:
    """At the mark outside of brackets; not within `<=`, `>=` and `!=`."""
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
