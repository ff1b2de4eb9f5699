r"""Checks that an answer states a value if one is asked for.

A parser makes a value of nearly anything: \neq 7 is read as 7, 4 \to 5 and 4 | 5 as 5. Here such answers are found in
the text, before anything is parsed.
"""

import re

from roll.utils.answers.numbers import read_number
from roll.utils.answers.text import BOUND_IN_WORDS, BOUNDS, MEMBER_OF, SPACE, SPACED, TEXT, split, without_sizes

_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\?\w)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BOUNDED = re.compile(  # the bounds of a sum name no value
    r"(\\(?:i{0,3}int|oint|sum|prod|coprod|lim(?:sup|inf)?|sup|inf|max|min)(?![A-Za-z])(?:\s*\\limits)?)"
    r"(?:\s*[_^]\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|\w))+"
)
_BEFORE_DIGIT = re.compile(r"\\[A-Za-z]+(?=\d)")
_MATRIX = re.compile(
    r"\\begin\{[bpvBV]?(?:small)?matrix\}.*\\end\{[bpvBV]?(?:small)?matrix\}",
    re.DOTALL,
)

_IN_BRACKETS = re.compile(
    r"[\s$]*(?:\\?[A-Za-z]+\s*=\s*)?(?P<opens>\(|\\?\{|\\lbrace)(?P<inside>.*?)(?P<closes>\)|\\?\}|\\rbrace)[\s$.]*",
    re.DOTALL,
)

_OTHER = {
    "not": r"\\neq?\b|\\neg\b|\\lnot\b|\\not(?![a-z])|\\not\\|\u2260|\u00ac|!="
    r"|\b(?:not|never|neither|nor|except|isn't|no)\b",
    "bound": rf"{BOUND_IN_WORDS}|\bup\s+to\b",
    "arrow": r"\\(?:long)?(?:left)?(?:right)?arrow\b|\\(?:Long)?(?:Left)?(?:Right)arrow\b|\\to\b|\\gets\b|\\mapsto\b"
    r"|\\implies\b|\\iff\b|[\u2190-\u21ff]|->|=>|<-",
    "divides": r"\\n?mid\b|\\divides\b|\d\s*(?:\||\\vert\b|\\parallel\b|\\\|)\s*\d",
    "struck": r"\\[xb]?cancel\b|\\sout\b|\\h?phantom\b|\\tag\b|\\(?:stackrel|overset|underset)\b",
    "logic": r"\\(?:lor|vee|land|wedge|oplus|perp|sim|cong|propto|asymp|bowtie|ominus)\b|[\u2227\u2228]|&&|~(?=\s*\d)",
}
_SAYS_OTHER = [re.compile(pattern) for pattern in _OTHER.values()]
"""An answer that says these says something else than a ground truth that does not."""

_MANY = {
    "joined": r"\b(?:or|and|either|both|versus|vs)\b|[;&]|\\\\|\\begin\{(?:cases|array|aligned|gathered|align\*?)\}",
    "spaced": r"\d\s*(?:\\[,;: ]|\\q?quad\b|~|\s)\s*(?:\\[,;: ]|\\q?quad\b|~|\s)*[-+]?[.\d]",
    "dots": r"\.\.\.|\\[lcv]?dots[cb]?\b|\u2026|\d\.\.\d",
    "signs": r"\\pm\b|\\mp\b|\u00b1|\u2213|\+/-|\+-",
    "sets": r"\\(?:big)?(?:cup|cap)\b|\\setminus\b|\\backslash\b|\\sqcup\b|[\u222a\u2229]",
    "bounds": BOUNDS.pattern,
    "member": r"\\(?:not)?in\b|\\ni\b|\\subset(?:eq)?\b|\u2208",
}
_SAYS_MANY = re.compile("|".join(f"(?:{pattern})" for pattern in _MANY.values()))

_FUNCTIONS = r"(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|mod|gcd|lcm|max|min|arcsin|arccos|arctan|frac)"
_WORDED = re.compile(
    rf"(?<![\^\d.])\d[\d.,]*\s*(?!{_FUNCTIONS}\b)[A-Za-z]{{2,}}[^\d^=]*(?<![\^\d.{{]){_FUNCTIONS}?\s*\d"
)
"""Numbers with words between them: "4 then 5"."""

_NAMES = """frac dfrac tfrac cfrac sqrt cdot times div over choose binom dbinom tbinom sum prod coprod int iint
iiint oint lim limsup liminf sup inf limits to max min gcd lcm det dim ker rank tr Pr Re Im arg mod pmod bmod equiv
approx simeq exp log ln lg sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh cot sec csc circ
deg degree angle triangle square infty pi nabla partial ell hbar imath jmath norm left right big bigl bigr Big Bigl
Bigr lfloor rfloor lceil rceil lvert rvert lbrace rbrace lbrack rbrack lparen rparen vert Vert lVert rVert text
textrm textbf textit textstyle textcolor textsf texttt textup mathrm mathbf mathit mathsf mathbb mathcal mathtt
mbox operatorname mathop boldsymbol bm displaystyle sf rm bf it emph tiny small normalsize large Large LARGE huge
Huge footnotesize scriptsize color colorbox underline boxed fbox overline bar dot ddot hat tilde widehat widetilde
vec overrightarrow begin end in ldots therefore checkmark quad qquad hspace vspace thinspace medspace thickspace
enspace alpha beta gamma Gamma zeta theta Theta phi varphi Phi delta Delta varDelta epsilon varepsilon eta iota
kappa varkappa lambda Lambda mu nu xi Xi Pi varPi rho varrho sigma Sigma varSigma varsigma tau upsilon Upsilon
varUpsilon chi psi Psi varPsi omega Omega varOmega varTheta varPhi varLambda varXi"""
_KNOWN = frozenset(_NAMES.split())
"""Commands that may stand in a number, or around it."""
_ODD_SIGN = re.compile(
    r"[@#?_`\"]|[^\x00-\x7f\u00b0\u03c0\u221a\u221e\u00d7\u00f7\u22c5\u00b7\u2212\u20ac\u00a3\u00a5]"
)
_PERCENT_OF = re.compile(r"\d\s*\\?%\s*[\dA-Za-z]")


def names_other_than_one_value(truth: str, answer: str) -> bool:
    r"""True where the answer cannot mean what the truth means, whatever their values are: it denies, orders or
    enumerates, and the truth does not.

    Examples for the truth 7: r"\neq 7", "4 or 7", "0 | 7", r"6\ 7", r"\pm 7", "7, 8", "7 to 9".
    """
    wanted, answered = _plain_text(truth), _plain_text(answer)
    if any(pattern.search(answered) and not pattern.search(wanted) for pattern in _SAYS_OTHER):
        return True
    if not is_one_value(wanted) or re.search(r"[([{].*,.*[)\]}]", wanted, re.DOTALL):
        return False
    return not is_one_value(answered) or (bool(re.search(r"\d", wanted)) and _has_unknown_sign(answer, truth))


def is_set_beside_tuple(one: str, other: str) -> bool:
    r"""True where one text is a set of several elements in braces and the other a tuple: r"\{1, 2\}" and "(1, 2)"."""
    return {_kind(one), _kind(other)} == {"set", "tuple"}


def repeats(text: str) -> bool:
    r"""Tell whether a list says a value twice. Examples: "1, 2, 2" does, r"\{1, 2, 2\}", which is a set, does not."""
    parts = [part.strip(" $") for part in split(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text), ",")]
    return len(parts) > len(set(parts))


def _kind(text: str) -> str:
    inside = _IN_BRACKETS.fullmatch(without_sizes(text))
    if inside is None or len(list(split(inside["inside"], ","))) < 2 or not is_balanced(inside["inside"]):
        return ""
    opens, closes = inside["opens"].lstrip("\\"), inside["closes"].lstrip("\\")
    return {"()": "tuple", "{}": "set", "lbracerbrace": "set"}.get(opens + closes, "")


def is_balanced(text: str) -> bool:
    """Whether no bracket closes before it opens. Example: "1), (2" is not."""
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0


def is_one_value(text: str) -> bool:
    """True unless it is a list, a range, a set, or several numbers with words between."""
    # the comma and the semicolon of a space divide nothing
    text = _BEFORE_DIGIT.sub(r"\g<0> ", SPACE.sub(SPACED, _BOUNDED.sub(r"\1 ", text)))
    if _SAYS_MANY.search(text) or _WORDED.search(_bare(text)):
        return False
    return sum(map(_is_value, split(text, ","))) < 2


def _plain_text(text: str) -> str:
    """The text without fonts, subscripts and separators of thousands; a matrix becomes a pair."""
    if read_number(text) is not None:
        return "0"
    text = re.sub(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))", "", MEMBER_OF.sub("", without_sizes(text)))
    text = _SUBSCRIPT.sub("", _BOUNDED.sub(r"\1 ", text.replace(r"\!", "")))
    return _MATRIX.sub("(1,2)", TEXT.sub(r" \1 ", text))


def _bare(text: str) -> str:
    return _COMMAND.sub(" ", text)


def _is_value(part: str) -> bool:
    part = _bare(part).strip(" ${}().")
    return bool(re.search(r"\d", part)) or re.fullmatch(r"[A-Za-z]", part) is not None or "\\" in part


def _has_unknown_sign(answer: str, truth: str) -> bool:
    """A command or a sign that has no place in a number, and is not in the truth either."""
    answer = _BOUNDED.sub(r"\1 ", answer)
    odd = [command for command in _COMMAND.findall(answer) if command[1:] not in _KNOWN]
    odd += _ODD_SIGN.findall(_SUBSCRIPT.sub("", answer))
    return any(sign not in truth for sign in odd) or _PERCENT_OF.search(answer) is not None
