"""Expansions of a shell's values: defaults, cut beginnings and ends, replacements, parts."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

from roll.importers.shell.arithmetic import whole_number
from roll.importers.shell.state import State, opened

_FORM = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
_LONGEST, _LONGEST_PATTERN = 1024, 100

Expand = Callable[[str], str]
"""A text as it stands in the script, with its own expansions done."""


def parameter(inside: str, state: State, expand: Expand) -> tuple[list[str], bool]:
    """Expand `${...}`, and tell whether the result is several separate words.

    Example: `A`, `A:-default`, `A[@]`, `A##*/`, `A/x/y`, `A:0:3`, `A,,`, `#A`, `@:2`.
    """
    form = _FORM.fullmatch(inside)
    if form is None or inside.startswith("oc.") or (form[4][:1] == "." and not form[1]):
        return ["${" + inside + "}"], False  # of the configuration itself
    sign, name, index, rest = form[1], form[2], (form[3] or "")[1:-1], form[4]
    if sign == "#" or (name == "#" and not rest):
        return [_length(state, "@" if name == "#" else name, index)], False
    if sign == "!" and index in ("@", "*") and not rest:
        return _names(state, name), index == "@"
    if sign == "!":
        pointed = state.known(name) or ""
        if index or rest or not re.fullmatch(r"\w+", pointed):
            return [opened(name)], False
        name = pointed
    if name in ("@", "*") or index in ("@", "*"):
        return _several(state, name, rest, expand), "@" in (name, index)
    if index:
        value = _entry(state, name, expand(index))
    else:
        value = state.known(name)
    return [_changed(state, name, value, rest, expand)], False


def _length(state: State, name: str, index: str) -> str:
    if name in ("@", "*"):
        return opened("#") if state.arguments is None else str(len(state.arguments))
    if index in ("@", "*"):
        entries = state.entries(name)
        return opened(name) if entries == [opened(name)] else str(len(entries))
    value = state.value(name)
    return opened(name) if "$" in value else str(len(value))


def _names(state: State, name: str) -> list[str]:
    """Return the names of an array's entries, which are numbers without `declare -A`."""
    return list(state.tables[name]) if name in state.tables else [str(i) for i in range(len(state.entries(name)))]


def _entry(state: State, name: str, index: str) -> str | None:
    if name in state.tables:
        return opened(name) if "$" in index else state.tables[name].get(index)
    place = whole_number(index, state.variables)
    values = state.entries(name)
    if place is None:
        return opened(name)
    return values[place] if -len(values) <= place < len(values) else None


def _several(state: State, name: str, rest: str, expand: Expand) -> list[str]:
    values = state.entries(name)
    if not rest:
        return values
    if rest[0] == ":" and rest[1:2] not in ("-", "=", "+", "?"):
        if name in ("@", "*"):  # the first argument is number 1
            values = ["", *values]
        part = _part(rest[1:], len(values), state, expand)
        return values if part is None else values[part]
    if rest[0] == "+" or rest.startswith(":+"):
        return [expand(rest.lstrip(":")[1:])] if values else []
    if rest.lstrip(":")[:1] in ("-", "=", "?"):
        return values or [expand(rest.lstrip(":")[1:])]
    return [_altered(value, name, rest, state, expand) for value in values]


def _changed(state: State, name: str, value: str | None, rest: str, expand: Expand) -> str:
    """One value, with what stands behind its name."""
    if not rest:
        return value if value is not None else state.value(name)
    is_colon = rest[0] == ":" and rest[1:2] in ("-", "=", "+", "?")
    sign, word = (rest[1], rest[2:]) if is_colon else (rest[0], rest[1:])
    if sign in ("-", "=", "+", "?"):
        is_there = value is not None and (value != "" or not is_colon)
        if sign == "+":
            if value is None and is_colon and name.isupper():
                state.assign(name, "")  # whoever asks so means both: without it, and nothing in its place
                state.note(f"${name} is not set in the script and treated as empty.")
            return expand(word) if is_there else ""
        if is_there:
            return value or ""
        if sign == "?":
            return state.value(name) or opened(name)
        default = expand(word)
        if sign == "=" and not name.isdecimal():
            state.assign(name, default)
        return default
    return _altered(value if value is not None else state.value(name), name, rest, state, expand)


def _altered(value: str, name: str, rest: str, state: State, expand: Expand) -> str:
    kind = rest[0]
    if kind in "#%":
        doubled = rest[1:2] == kind
        return _cut(value, expand(rest[1 + doubled :]), kind == "#", doubled) or opened(name)
    if "$" in value:
        return opened(name)
    if kind == ":":
        part = _part(rest[1:], len(value), state, expand)
        return opened(name) if part is None else value[part]
    if kind == "/":
        return _replaced(value, rest[1:], state, expand, name)
    if kind in ",^":
        return _cased(value, rest, kind, expand, name)
    return opened(name)


def _cased(value: str, rest: str, kind: str, expand: Expand, name: str) -> str:
    whole = rest[1:2] == kind
    pattern = expand(rest[1 + whole :])
    if pattern not in ("", "?"):
        return opened(name)
    change = str.lower if kind == "," else str.upper
    return change(value) if whole else change(value[:1]) + value[1:]


def _cut(value: str, pattern: str, is_beginning: bool, longest: bool) -> str | None:
    """The value without its shortest or longest beginning or end that fits; None where that cannot be told. What is
    of the environment may be cut off with what stands before or behind it, never in two."""
    if "$" in pattern or len(value) > _LONGEST or len(pattern) > _LONGEST_PATTERN:
        return None
    fits = re.compile(fnmatch.translate(pattern)).match
    lengths: Sequence[int] = range(len(value) + 1)
    lengths = lengths[::-1] if longest else lengths
    for length in lengths:
        gone = value[:length] if is_beginning else value[len(value) - length :]
        if not fits(gone):
            continue
        remainder = value[length:] if is_beginning else value[: len(value) - length]
        if (
            "$" in value
            and ("$" in gone)
            and not (longest and pattern in ("*/", "/*") and "$" not in remainder and remainder)
        ):
            return None
        return remainder if remainder.count("{") == remainder.count("}") else None
    return value if "$" not in value else None


def _part(text: str, length: int, state: State, expand: Expand) -> slice | None:
    """Example: "2" is all from the third on, "1:3" three from the second, " -2" the last two."""
    first, colon, count = expand(text).partition(":")
    start = whole_number(first, state.variables) if first.strip() else 0
    size = whole_number(count, state.variables) if colon else length
    if start is None or size is None or start < -length:
        return None
    start = start + length if start < 0 else start
    return slice(start, length + size if size < 0 else start + size)


def _replaced(value: str, text: str, state: State, expand: Expand, name: str) -> str:
    which = text[:1] if text[:1] in ("/", "#", "%") else ""
    pattern, _, new = _divided(text[len(which) :])
    pattern, new = expand(pattern), expand(new)
    if not pattern:
        return {"#": new + value, "%": value + new}.get(which, value)
    fits = _search(pattern, value)
    if fits is None:
        return opened(name)
    ends = {"#": rf"\A(?:{fits})", "%": rf"(?:{fits})\Z"}.get(which, fits)
    state.spend(len(value) * (len(new) + 1) if which == "/" else len(new))
    return re.sub(ends, lambda _: new, value, count=0 if which == "/" else 1, flags=re.DOTALL)


def _search(pattern: str, value: str) -> str | None:
    """The pattern of a shell as one of Python's; None where it would take long."""
    if "$" in pattern or len(pattern) > _LONGEST_PATTERN or len(value) > _LONGEST or pattern.count("*") > 1:
        return None
    parts = re.split(r"(\*|\?|\[[^\]]+\])", pattern)
    return "".join({"*": ".*", "?": "."}.get(part) or (part if part[:1] == "[" else re.escape(part)) for part in parts)


def _divided(text: str) -> tuple[str, str, str]:
    """The text before, at and after the first unescaped slash. Escaped slashes are unescaped in the first part."""
    match = re.match(r"((?:\\.|[^\\/])*)(/?)(.*)", text, re.DOTALL)
    return (match[1].replace("\\/", "/"), match[2], match[3]) if match else (text, "", "")
