"""Tests of a shell script that the script alone decides."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from roll.importers.shell.arithmetic import whole_number
from roll.importers.shell.state import State
from roll.importers.shell.values import text_of

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_LONGEST = 4096


def verdict(words: Sequence[str], state: State) -> bool | None:
    """Truth of `[ ... ]`, `[[ ... ]]` or `test ...`; None where only a run of the script would tell."""
    is_double = words[0] == "[["
    inner = list(words[1:-1] if words[0] in ("[", "[[") and words[-1] in ("]", "]]") else words[1:])
    return _either(inner, state, is_double)


def _either(words: list[str], state: State, is_double: bool) -> bool | None:
    for sign, joined in ((("||", "-o"), any_of), (("&&", "-a"), all_of)):
        places = [i for i, word in enumerate(words) if word in sign and 0 < i < len(words) - 1]
        if places:
            first, second = words[: places[0]], words[places[0] + 1 :]
            return joined(_either(first, state, is_double), _either(second, state, is_double))
    if words[:1] == ["("] and words[-1:] == [")"]:
        return _either(words[1:-1], state, is_double)
    if words[:1] == ["!"]:
        return negated(_either(words[1:], state, is_double))
    return _single(words, state, is_double)


def _single(words: list[str], state: State, is_double: bool) -> bool | None:
    if not words:
        return False
    if len(words) == 1:
        return _is_text(words[0], state)
    if len(words) == 2:
        return _of_one(words[0], words[1], state)
    if len(words) != 3:
        return None
    sign = words[1]
    first = _known(words[0], state)
    if sign in ("=", "==", "!=") and is_double and words[2][:1] not in "'\"":
        second = _known(words[2], state)
        if first is None or second is None or len(first) > _LONGEST or len(second) > _LONGEST:
            return None
        matches = fnmatch.fnmatchcase(first, second)
        return matches == (sign != "!=")
    second = _known(words[2], state)
    if first is None or second is None:
        return None
    if sign in ("=", "==", "!="):
        return (first == second) == (sign != "!=")
    if sign in ("<", ">"):
        return (first < second) == (sign == "<")
    if sign in _NUMBERS:
        value = whole_number(f"({first}) {_NUMBERS[sign]} ({second})", state.variables)
        return None if value is None else bool(value)
    return None


def _of_one(sign: str, word: str, state: State) -> bool | None:
    """Example: -z "$X". A variable that nothing sets is not set: its value is what the script makes of that."""
    if sign == "-n":
        return _is_text(word, state)
    if sign == "-z":
        return negated(_is_text(word, state))
    if sign == "-v":
        return state.known(word) is not None
    return None


def _is_text(word: str, state: State) -> bool | None:
    value = text_of(word, state)
    if "$" not in value and "`" not in value:
        return bool(value)
    if value.startswith("${oc.env:") and value.count("$") == 1 and value.endswith("}"):
        state.note(f"The script tests whether {value[9:-1]} is set: it is treated as not set.")
        return False
    return None


def _known(word: str, state: State) -> str | None:
    value = text_of(word, state)
    return None if "$" in value or "`" in value else value


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def all_of(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def any_of(first: bool | None, second: bool | None) -> bool | None:
    return negated(all_of(negated(first), negated(second)))
