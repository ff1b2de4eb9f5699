r"""LaTeX's environments of several lines: systems, derivations, and functions that are given piece by piece.

A system and a derivation are written on one line. The pieces of a function are pairs of a value and a condition.
"""

import re
from collections.abc import Callable

from roll.utils.answers.text import is_name, split

_NAMES = r"(?:cases|dcases|aligned|align\*?|gathered|gather\*?|split|eqnarray\*?|array|equation\*?)"
_ENVIRONMENT = re.compile(
    rf"(?P<before>.*?)(?:\\left\s*(?:\\\{{|\.)\s*)?\\begin\{{(?P<name>{_NAMES})\}}(?:\s*\{{[lcr| ]+\}})?(?P<lines>.*?)"
    rf"\\end\{{(?P=name)\}}(?:\s*\\right\s*\.?)?(?P<after>[\s.,$]*)",
    re.DOTALL,
)
MAX_CHARS = 2000  # of what is taken apart
_LINE_BREAK = re.compile(r"(?:\\\\\s*)+(?:\[[^\[\]]*\])?")
_AT_ENDS = " \t\n,;."
_CONDITION = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_OF_CONDITIONS = re.compile(r"\b(?:if|when|for|where|as|is)\b|\\q?quad\b|\\[,;:! ]", re.IGNORECASE)
_ELSE = re.compile(r"(?:otherwise|else|elsewhere)", re.IGNORECASE)
_SIGNS = ((r"\geqslant", r"\ge"), (r"\leqslant", r"\le"), (r"\geq", r"\ge"), (r"\leq", r"\le"), (r"\neq", r"\ne"))


def on_one_line(text: str) -> str:
    r"""A system with commas between its equations, and a derivation as a chain of equals; all else as it is.

    Examples:
        r"\begin{cases} x = 1 \\ y = 2 \end{cases}" -> "x = 1, y = 2"
        r"\begin{aligned} x &= 3 \cdot 4 \\ &= 12 \end{aligned}" -> r"x = 3 \cdot 4 = 12"
    """
    environment = _ENVIRONMENT.fullmatch(text) if len(text) <= MAX_CHARS else None
    if environment is None or environment["before"].strip(" $"):
        return text
    lines = [line.replace("&", " ").strip(_AT_ENDS) for line in _LINE_BREAK.split(environment["lines"])]
    lines = [line for line in lines if line]
    if len(lines) == 1:
        return lines[0]
    if any(len(list(split(line, "="))) < 2 for line in lines):
        return text
    equations: list[str] = []
    for line in lines:
        if line.startswith("=") and equations:
            equations[-1] += f" {line}"
        else:
            equations.append(line)
    names = [next(split(equation, "=")) for equation in equations]
    if len(equations) == 1:
        return equations[0]
    one_for_each = len({"".join(name.split()) for name in names}) == len(names) and all(map(is_name, names))
    return ", ".join(equations) if one_for_each else text


def pieces(text: str) -> list[tuple[str, str]] | None:
    r"""The values of a function and when each holds; None for what is no such function.

    Example: r"f(x) = \begin{cases} x & \text{if } x \geq 0 \\ -x & x < 0 \end{cases}" ->
    [("x", r"x\ge0"), ("-x", "x<0")]
    """
    environment = _ENVIRONMENT.fullmatch(text)
    if environment is None or not re.fullmatch(r"[\s$]*(?:[^=]*=\s*)?", environment["before"]):
        return None
    lines = [line.split("&") for line in _LINE_BREAK.split(environment["lines"]) if line.strip()]
    if len(lines) < 2 or any(len(line) != 2 for line in lines):
        return None
    pairs = [(value.strip(_AT_ENDS), _bare_condition(condition)) for value, condition in lines]
    if any(not value or condition.startswith("=") for value, condition in pairs):  # x &= 1
        return None
    return pairs if [condition for _, condition in pairs].count("") < 2 else None


def same_pieces(gold: list[tuple[str, str]], pred: list[tuple[str, str]], equal: Callable[[str, str], bool]) -> bool:
    """True if each value holds under the same condition in both, in whatever order. One may say "otherwise" where the
    other says when."""
    rest = sorted(pred, key=_says_otherwise)
    for value, condition in sorted(gold, key=_says_otherwise):
        alike = [one for one in rest if not one[1] or not condition or one[1] == condition or equal(condition, one[1])]
        same = next((one for one in alike if equal(value, one[0])), None)
        if same is None:
            return False
        rest.remove(same)
    return not rest


def _says_otherwise(piece: tuple[str, str]) -> bool:
    return not piece[1]


def _bare_condition(text: str) -> str:
    """Empty for "otherwise"."""
    text = _OF_CONDITIONS.sub(" ", _CONDITION.sub(r" \1 ", text)).strip(_AT_ENDS)
    for sign, same in _SIGNS:
        text = text.replace(sign, same)
    return "" if _ELSE.fullmatch(text) else "".join(text.split())
