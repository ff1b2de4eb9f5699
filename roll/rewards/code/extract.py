"""The program in an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from roll.utils.thinking import after_thinking

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<before>[^`~\n]*?)(?P<fence>`{3,}|~{3,})[ \t]*(?P<word>[^\s`]*)[^`\n]*$", re.MULTILINE
)

_TAG = re.compile(r"<\w+>")
_ITEM = re.compile(r"[-*+]|\d{1,9}[.)]")
_WORD = re.compile(r"\{?\.?(?:lang(?:uage)?-)?([A-Za-z][\w+#]*)(?![\w-])")


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
    blocks, is_open = _blocks(answer)
    for opening, end in blocks:
        language = fences.get(_language(opening["word"])) if opening["word"] else next(iter(fences.values()))
        body = answer[opening.end() : end].removeprefix("\n")
        if language is not None and body.strip() and (opening["word"] or not is_named):
            is_named = bool(opening["word"])
            found = Code(language, _dedent(body, _indent(opening)))
    if found is None and not is_open and plain is not None and answer.strip() and not FENCE.search(answer):
        return Code(plain, answer.strip() + "\n")
    return found


def _blocks(answer: str) -> tuple[list[tuple[re.Match[str], int]], bool]:
    """The openings of all blocks and where the blocks end, and whether the last one never does. What ends none by the
    rules, such as a fence behind the last line of code, ends one that another block follows, or nothing else ends."""
    found: list[tuple[re.Match[str], int]] = []
    opening: re.Match[str] | None = None
    end: int | None = None
    for line in FENCE.finditer(answer):
        if opening is None:
            opening, end = (line if _opens(line) else None), None
        elif _closes(line) and line["fence"].startswith(opening["fence"]):
            found.append((opening, line.start()))
            opening = None
        elif end is not None and line["word"] and not line["before"].strip() and _is_info(line):
            found.append((opening, end))
            opening, end = line, None
        elif end is None and _may_close(line) and line["fence"].startswith(opening["fence"]):
            end = line.start("fence")
    if opening is not None and end is not None:
        found.append((opening, end))
        opening = None
    return found, opening is not None


def _opens(line: re.Match[str]) -> bool:
    """Text before a fence is the start of a block where a word follows it and ends the line, or where it leads up to
    one: "Code:", an item of a list."""
    before = line["before"].strip()
    return not before or _is_info(line) or before.endswith((":", ">")) or _ITEM.fullmatch(before) is not None


def _is_info(line: re.Match[str]) -> bool:
    return bool(line["word"]) and line[0].rstrip().endswith(line["word"])


def _may_close(line: re.Match[str]) -> bool:
    """Example: "print(x)```", or "``` is the program"."""
    behind = line[0][line.end("fence") - line.start() :]
    return not behind.strip() or (not line["before"].strip() and behind[0] == " " and not _is_info(line))


def _closes(line: re.Match[str]) -> bool:
    is_alone = not line["before"].strip() or _TAG.fullmatch(line["before"].strip()) is not None
    return is_alone and (not line["word"] or line["word"].startswith("</"))


def _language(word: str) -> str:
    """Example: python of `{.python .numberLines}`, `language-python`, `python:main.py` and `Python3.11`: python3."""
    found = _WORD.match(word)
    return found[1].lower() if found else word.lower()


def _indent(opening: re.Match[str]) -> str:
    """That of the lines of the block: below an item of a list, as wide as what stands before the fence; of a quote what
    marks it."""
    if opening["before"].strip() == ">":
        return opening["indent"] + opening["before"]
    is_item = _ITEM.fullmatch(opening["before"].strip()) is not None
    return opening["indent"] + (" " * len(opening["before"]) if is_item else "")


def _dedent(body: str, indent: str) -> str:
    """The code without the indentation of its fence, as in a block below a list item."""
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True)) if indent else body
