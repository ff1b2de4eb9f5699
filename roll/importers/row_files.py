"""Rows of tables from YAML: `data/verl` and `data/trinity` say what becomes of a key, and how a report says it.

A file is a list of blocks. A block has `rows` below a section `at`, or names a family of blocks. `<name>` stands for a
word of the block or of `words.yaml`, `{a,b}` for several keys, and a key with a dot before it is below `at`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from roll.configs.strategies.megatron_config import KNOWN, SET_ELSEWHERE, UNUSED
from roll.importers import conversions
from roll.importers.rows import CHANGES, NOTHING, RELEASE, Condition, Outcome, Row, SourceLookup, data

_OUTCOMES: Mapping[str, Outcome] = {
    "needless": "asks for nothing",
    "lacks": "not available",
    "changes": CHANGES,
    "near": "approximated",
}
_WORD, _CHOICE = re.compile(r"<([^<>]+)>"), re.compile(r"\{([^{}]*)\}")
_SPLITS = ("num_layers_in_", "account_for_", "recompute_", "moe_token_dispatcher")
_LISTS: Mapping[str, Mapping[str, str]] = {
    "passed on": {name: "" for name in sorted(KNOWN - {*SET_ELSEWHERE, *UNUSED}) if not name.startswith(_SPLITS)},
    "unused": UNUSED,
    "trackers": data("trackers.yaml")["settings"],
}
"""Names that rows expand by `{@...}`: keys of Megatron's own with what is said of them, variables of trackers."""


@cache
def rows_of(path: str) -> tuple[Row, ...]:
    """Return the rows of a file, in its order."""
    content = data(path)
    return tuple(
        row for block in (content if isinstance(content, list) else content["rows"]) for row in _rows(block, {})
    )


def filled(node: Any) -> Any:
    """Return data with words in the place of their names, in keys as in values."""
    if isinstance(node, Mapping):
        return {filled(key): filled(value) for key, value in node.items()}
    if isinstance(node, list):
        return [filled(value) for value in node]
    return _filled(node, {}) if isinstance(node, str) else node


def expanded(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with a key for every choice of its names."""
    return {key: filled(value) for keys, value in said.items() for key, _ in _expanded(_filled(keys, {}))}


def names_of(said: Mapping[str, str]) -> dict[str, str]:
    """Return the names that a mapping of keys to keys gives; `*` in a name is the last part of the key."""
    return {key: name.replace("*", key.rpartition(".")[2]) for key, name in expanded(said).items()}


@cache
def conditions_of(path: str) -> Mapping[str, Condition]:
    """Return the conditions of a file by their names."""
    filled = {name: {word: _filled(value, {}) for word, value in said.items()} for name, said in data(path).items()}
    return {name: _condition(**said) for name, said in filled.items()}


def _condition(key: str, why: str, **wanted: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        value = source(key)
        holds = value == wanted["is"] if wanted else bool(value)
        return "" if holds else why.format(value)

    return condition


def _rows(block: Mapping[str, Any], outer: Mapping[str, str]) -> Iterator[Row]:
    own = {name: value for name, value in block.items() if name not in ("rows", "family", "needs")}
    words = {**outer, **{name: _filled(value, outer) for name, value in own.items()}}
    needs = _filled(block.get("needs", ""), words)
    if "family" in block:
        for inner in data("verl/families.yaml")[block["family"]]:
            yield from (row if row.needs else replace(row, needs=needs) for row in _rows(inner, words))
        return
    for names, said in block["rows"].items():
        for name, why in _expanded(_filled(names, words)):
            key = f"{words['at']}{name}" if name.startswith(".") else name
            yield _row(key, said, {**words, "why": why}, needs)


def _expanded(names: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that a name with choices stands for. Example: `a.{b,c}` is a.b and a.c."""
    found = _CHOICE.search(names)
    if found is None:
        yield names, ""
        return
    choices = _LISTS[found[1][1:]] if found[1].startswith("@") else dict.fromkeys(found[1].split(","), "")
    for choice, why in choices.items():
        for rest, inner in _expanded(names[found.end() :]):
            yield f"{names[: found.start()]}{choice}{rest}", why or inner


def _row(key: str, said: Any, words: Mapping[str, str], needs: str) -> Row:
    said = {"to": said} if isinstance(said, str) else said
    last = key.rpartition(".")[2]
    targets = [said["to"]] if isinstance(said.get("to", []), str) else said.get("to", [])
    targets = [_filled(target, words) for target in targets]
    outcome = next((name for name in _OUTCOMES if name in said), "")
    default = said.get("default", NOTHING)
    idle = (None, *said.get("but", ())) if outcome in ("lacks", "changes") else ()
    return Row(
        key,
        tuple(target if "*" in last else target.replace("*", last) for target in targets),
        conversions.inline(via, last) if isinstance(via := said.get("as", "same"), dict) else getattr(conversions, via),
        RELEASE if default == "release" else default,
        _filled(said.get("needs", needs), words),
        tuple(said.get("idle", idle)),
        _filled(said.get("sum", ""), words),
        _filled(said[outcome] if outcome else said.get("note", ""), words),
        _OUTCOMES.get(outcome, "mapped"),
    )


def _filled(text: str, words: Mapping[str, str]) -> str:
    """Put words in the place of their names, as far as there are any. Example: <actor>.lr, but <domain> stays."""
    known = data("words.yaml")
    for _ in range(3):  # words stand in words
        text = _WORD.sub(lambda found: words.get(found[1], known.get(found[1], found[0])), text)
    return text
