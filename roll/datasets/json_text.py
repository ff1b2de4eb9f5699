"""JSON as data sets write it: parsed without a traceback, with what is wrong in it said in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100  # of lists and objects; what is deeper ends some later step in a RecursionError


@dataclass(frozen=True)
class Parsed:
    """A value, where it ends in the text, and the first of what no row may hold ("" if it holds none of it)."""

    value: Any
    end: int
    fault: str


def parse(text: str, start: int = 0) -> Parsed:
    """The JSON value that begins at `start`, white space before it skipped. Raises JSONDecodeError where it is none.

    A fault is a key that occurs twice in one object, an integer that Python does not read, nesting beyond MAX_DEPTH,
    and text that UTF-8 cannot hold.
    """
    faults: list[str] = []

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            faults.append(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
        return made

    def integer(digits: str) -> int:
        try:
            return int(digits)
        except ValueError:
            limit = sys.get_int_max_str_digits()
            faults.append(f"holds an integer of more than {limit} digits; write it as a text")
            return 0

    decoder = json.JSONDecoder(object_pairs_hook=unique, parse_int=integer)
    start = skip_space(text, start)
    try:
        value, end = decoder.raw_decode(text, start)
    except RecursionError:
        return Parsed(None, len(text), _too_deep())
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        return Parsed(None, end, _too_deep())
    if "\\u" in text[start:end] and not all(_is_sound(part) for part in _texts(value)):
        faults.append(
            r"holds half of a surrogate pair (\ud800 to \udfff), which is not valid text; remove it or complete it"
        )
    return Parsed(value, end, faults[0] if faults else "")


def parse_whole(text: str) -> Parsed:
    """The same of a text that holds nothing else. Raises JSONDecodeError if more follows."""
    parsed = parse(text)
    end = skip_space(text, parsed.end)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return parsed


def skip_space(text: str, at: int) -> int:
    """Position of the first character from `at` on that is not white space."""
    while text[at : at + 1].isspace():
        at += 1
    return at


def _too_deep() -> str:
    return f"is nested more than {MAX_DEPTH} levels deep"


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level := [item for held in level for item in _inside(held)]:
        depth += 1
    return depth


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
        waiting.extend(_inside(item))


def _is_sound(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
