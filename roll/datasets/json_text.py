"""JSON as data sets write it: parsed without a traceback, with what is wrong in it said in words."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parsed:
    """A value, where it ends in the text, and the first of what no row may hold ("" if it holds none of it)."""

    value: Any
    end: int
    fault: str


def parse(text: str, start: int = 0) -> Parsed:
    """The JSON value that begins at `start`, white space before it skipped. Raises JSONDecodeError where it is none.

    A fault is a key that occurs twice in one object, and text that UTF-8 cannot hold.
    """
    faults: list[str] = []

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            faults.append(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
        return made

    start = skip_space(text, start)
    try:
        value, end = json.JSONDecoder(object_pairs_hook=unique).raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:  # nested too deeply, a number of too many digits
        raise json.JSONDecodeError(str(error), text, start) from error
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


def _texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item


def _is_sound(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
