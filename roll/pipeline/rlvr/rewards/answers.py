"""Finding the final answer in a response."""

from __future__ import annotations

import re

END_OF_THINKING = "</think>"
TOKEN = re.compile(r"\\f?boxed\s*\{|\\f?boxed\s+(?P<word>[^\s{]+)|\\.|[{}]", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?%?|(?<![\w.])[-+]?\.\d+%?")


def after_thinking(text: str) -> str:
    """What follows the last `</think>`; all of it when there is none (an answer cut off while thinking included)."""
    return text.rpartition(END_OF_THINKING)[2]


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` that is closed, braces inside matched; None if there is none.

    Example: r"so \boxed{\frac{1}{2}}." -> r"\frac{1}{2}"
    """
    open_braces: list[tuple[int, bool]] = []  # (where the content begins, whether it is a box)
    start, last = -1, None
    for match in TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup == "word":  # \boxed 5
            start, last = match.start(), match["word"].rstrip("$.,")
        elif token == "}":
            begin, is_box = open_braces.pop() if open_braces else (0, False)
            if is_box and begin > start:
                start, last = begin, text[begin : match.start()]
        elif token.endswith("{") and token != "\\{":
            open_braces.append((match.end(), token != "{"))
    return last


def last_number(text: str) -> str | None:
    """The last number as written, with sign, separators, decimals, fraction a/b, percent sign; None if there is none.

    Example: "it costs $1,234.50 in all." -> "1,234.50"
    """
    matches = NUMBER.findall(text)
    return matches[-1] if matches else None
