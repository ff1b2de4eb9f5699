"""The program in an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from roll.utils.thinking import after_thinking

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?:<\w+>[ \t]*)?(?P<fence>`{3,}|~{3,})[ \t]*(?P<word>[^\s`]*)[^`\n]*$", re.MULTILINE
)


@dataclass(frozen=True)
class Code:
    language: str
    text: str


def code_in(text: str, fences: Mapping[str, str], plain: str | None = None) -> Code | None:
    """The last fenced block after the thinking whose word, such as `python`, is in `fences` (word -> language). Without
    any, the last block without a word, which is of the first language: behind a program it shows what that prints. A
    block that never ends is none. None if there is no such block; with `plain` an answer without any fence is code of
    that language."""
    answer = after_thinking(text)
    found: Code | None = None
    is_named = False
    opening: re.Match[str] | None = None
    for line in FENCE.finditer(answer):
        if opening is None:
            opening = line
        elif (not line["word"] or line["word"].startswith("</")) and line["fence"].startswith(opening["fence"]):
            language = fences.get(opening["word"].lower()) if opening["word"] else next(iter(fences.values()))
            body = answer[opening.end() : line.start()].removeprefix("\n")
            if language is not None and body.strip() and (opening["word"] or not is_named):
                is_named = bool(opening["word"])
                found = Code(language, _dedent(body, opening["indent"]))
            opening = None
    if found is None and opening is None and plain is not None and answer.strip() and not FENCE.search(answer):
        return Code(plain, answer.strip() + "\n")
    return found


def _dedent(body: str, indent: str) -> str:
    """Without the indentation of the fence itself, as in a block below a list item."""
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True)) if indent else body
