"""Ends of quoted parts, expansions and runs of characters in a shell script."""

from __future__ import annotations

import re

DEEPEST = 40
_PLAIN, _PLAIN_IN_QUOTES = re.compile(r"[^\s;|&()<>'\"$`\\]+"), re.compile(r"[^\"$`\\]+")
_INSIDE, _INSIDE_CODE = re.compile(r"[^'\"$`\\(){}]+"), re.compile(r"[^'\"$`\\(){}#<\n]+")
_DOCUMENT = re.compile(r"<<(-?)[ \t]*(['\"]?)(\w+)\2")
_BEFORE_COMMENT = " \t\r\n(;&|"
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]")


class Damaged(Exception):
    """Error: no shell would accept this text."""


def end_of(text: str, start: int, depth: int = 0) -> int:
    """Finds the end of the quoted part, the expansion or the run of characters that begins at `start`."""
    if depth > DEEPEST:
        raise Damaged(f"brackets within brackets, more than {DEEPEST} deep")
    char = text[start]
    if char == "'":
        return _after(text, "'", start + 1, "a ' that is never closed")
    if char == '"':
        return inside(text, start + 1, '"', depth, in_quotes=True)
    if char == "`":
        return inside(text, start + 1, "`", depth, in_quotes=True, is_plain=True)
    if char == "\\":
        return min(start + 2, len(text))
    if char == "$":
        return expansion_end(text, start, depth)
    match = _PLAIN.match(text, start + 1)
    return start + 1 if match is None else match.end()


def expansion_end(text: str, start: int, depth: int = 0, in_quotes: bool = False) -> int:
    """The same of what begins with a dollar."""
    following = text[start + 1 : start + 2]
    if following == "(":
        return inside(text, start + 2, ")", depth)
    if following == "{":
        return inside(text, start + 2, "}", depth, in_quotes=in_quotes)
    if following == "[":
        return _after(text, "]", start + 2, "a $[ that is never closed")
    if following == "'" and not in_quotes:
        return inside(text, start + 2, "'", depth, in_quotes=True, is_plain=True)
    name = _PARAMETER.match(text, start + 1)
    return start + 1 if name is None else name.end()


def _after(text: str, end: str, start: int, message: str) -> int:
    place = text.find(end, start)
    if place < 0:
        raise Damaged(message)
    return place + len(end)


def inside(text: str, i: int, end: str, depth: int, in_quotes: bool = False, is_plain: bool = False) -> int:
    """Position behind the closing character, whatever text comes before it."""
    opening = {")": "(", "}": "{"}.get(end)
    is_code = end == ")" and text[i : i + 1] != "("
    plain = _PLAIN_IN_QUOTES if end == '"' else _INSIDE_CODE if is_code else _INSIDE
    open_ones, documents = 0, list[re.Match[str]]()
    while i < len(text):
        char = text[i]
        if char == end and not open_ones:
            return i + 1
        if char == "\\":
            i += 2
        elif is_plain:
            i += 1
        elif is_code and char == "#" and text[i - 1] in _BEFORE_COMMENT:
            line = text.find("\n", i)
            i = len(text) if line < 0 else line
        elif is_code and (document := _DOCUMENT.match(text, i)) and text[i - 1] != "<":
            documents.append(document)
            i = document.end()
        elif is_code and char == "\n":
            i, documents = _behind(documents, text, i + 1), []
        elif char == end:
            open_ones, i = open_ones - 1, i + 1
        elif char == opening:
            open_ones, i = open_ones + 1, i + 1
        elif char == "$":
            i = _deeper(text, i, depth, in_quotes)
        elif char == "`" or (end != '"' and (char == '"' or (char == "'" and not in_quotes))):
            i = end_of(text, i, depth + 1)
        else:
            match = plain.match(text, i + 1)
            i = i + 1 if match is None else match.end()
    raise Damaged(f"a {opening or end} that is never closed")


def _behind(documents: list[re.Match[str]], text: str, i: int) -> int:
    """Position behind the here-documents that begin at `i`."""
    for document in documents:
        i = document_end(text, i, document[3], bool(document[1]))
    return i


def document_end(text: str, start: int, word: str, takes_tabs: bool) -> int:
    """Position behind the line that ends a here-document; `takes_tabs`: there may be tabs before the word."""
    tabs = r"\t*" if takes_tabs else ""
    match = re.compile(rf"^{tabs}{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(text, start)
    return len(text) if match is None else min(match.end() + 1, len(text))


def _deeper(text: str, i: int, depth: int, in_quotes: bool) -> int:
    if depth >= DEEPEST:
        raise Damaged(f"brackets within brackets, more than {DEEPEST} deep")
    return expansion_end(text, i, depth + 1, in_quotes)


def end_of_brackets(text: str, start: int) -> int:
    """Position behind the bracket that closes the one at `start`."""
    return inside(text, start + 1, ")", 0)
