r"""LaTeX's environments of several lines: a system and a derivation are written on one line."""

from __future__ import annotations

import re

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
