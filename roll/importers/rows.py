"""What a table of another system's keys is made of: a row for each key, one place for each fact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from roll.configs.problems import nearest

Outcome = Literal["mapped", "approximated", "not to be had", "changes the run", "asks for nothing"]
CHANGES: Outcome = "changes the run"
"""What is lost is of the matter: data, rewards, tools, environments, the loss, what is trained. What only costs memory
or speed is `not to be had`."""
NOTHING: Any = object()
"""In place of a default: the key has none of its own that matters here."""


@dataclass(frozen=True)
class Near:
    """A value that is not the same, and how it differs."""

    value: Any
    note: str


@dataclass(frozen=True)
class Each:
    """A value for every target of the row, in their order."""

    values: tuple[Any, ...]


class NotHere(Exception):
    """A value that cannot be had, with the reason and the nearest thing."""


class ChangesRun(NotHere):
    """The same of a value without which the run is not the one that its author meant."""


class LeftOpen(NotHere):
    """A key whose value a script leaves to its shell."""

    def __init__(self, key: str, value: Any):
        super().__init__(f"{key}: {value} is not set. Set it: {key}=... after the file")
        self.key = key


class Change(str):
    """A note on what stands beside the keys, without which the run is not the one that its author meant."""

    __slots__ = ()


class AsksNothing(Exception):
    """A value that changes nothing here, with the reason."""


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Row:
    """`key` may have `*` for one part and `**` for any number of them. With `targets` the value is written there, with
    `sum` an arithmetic over several keys has read it, with neither there is nothing to write: `note` says why. `*` in a
    target is the last part of the key."""

    key: str
    targets: tuple[str, ...] = ()
    via: Callable[[Any], Any] = same
    default: Any = NOTHING
    """What holds in the other system where the key is not given: it is written as well."""
    needs: str = ""
    """The condition without which the key asks for nothing."""
    idle: tuple[Any, ...] = ()
    """Values that ask for nothing here."""
    sum: str = ""
    note: str = ""
    outcome: Outcome = "mapped"


def to(key: str, *targets: str, **more: Any) -> Row:
    return Row(key, targets, **more)


def summed(key: str, sum: str, default: Any = NOTHING, **more: Any) -> Row:
    return Row(key, sum=sum, default=default, **more)


def lacks(key: str, note: str, *idle: Any, default: Any = NOTHING) -> Row:
    """A key that is not to be had, but at the values that ask for nothing: null and `idle`."""
    return Row(key, note=note, idle=(None, *idle), outcome="not to be had", default=default)


def changes(key: str, note: str, *idle: Any, default: Any = NOTHING) -> Row:
    """A key that is not to be had, as of `lacks`, and without which the run is not the one that its author meant."""
    return Row(key, note=note, idle=(None, *idle), outcome=CHANGES, default=default)


def needless(key: str, note: str, **more: Any) -> Row:
    return Row(key, note=note, outcome="asks for nothing", **more)


@dataclass(frozen=True)
class Sum:
    """What an arithmetic writes, and the words for it. `near` says how it differs from what was asked, `nears` the same
    of single keys; `lost` names keys that it could not serve, with the reason, and `changes` those without which the
    run is not the one that its author meant."""

    settings: Mapping[str, Any]
    text: str
    near: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    nears: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)
    """Keys that ask for nothing beside the others, with the reason."""


def _is_left_open(value: Any) -> bool:
    """Whether a shell or the environment would put something in its place."""
    return isinstance(value, str) and ("$" in value or "`" in value)


class Look:
    """The value of a key of the other system: as given, or its default there."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]):
        self._given = given
        self._defaults = defaults
        self.left_open: set[str] = set()
        """Keys that `number_or_open` found open."""

    def __call__(self, key: str, default: Any = None) -> Any:
        value = self._given.get(key)
        return self._defaults.get(key, default) if value is None else value

    def is_given(self, key: str) -> bool:
        return self._given.get(key) is not None

    def below(self, prefix: str) -> dict[str, Any]:
        """The given keys of a section, without its name."""
        return {key[len(prefix) + 1 :]: value for key, value in self._given.items() if key.startswith(prefix + ".")}

    def number(self, key: str, default: Any = None) -> int:
        """A whole number. Raises NotHere for what is none, LeftOpen for what a script leaves open."""
        value = self(key, default)
        if _is_left_open(value):
            raise LeftOpen(key, value)
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise NotHere(f"{key}: {value} is not a whole number. Set it: {key}=8 after the file")
        return value

    def number_or_open(self, key: str, default: Any = None) -> int | None:
        """A whole number; None where a script leaves it open, which the report asks for."""
        try:
            return self.number(key, default)
        except LeftOpen:
            self.left_open.add(key)
            return None

    def size(self, key: str, default: Any = None) -> int:
        """A whole number above 0."""
        value = self.number(key, default)
        if value < 1:
            raise NotHere(f"{key}: {value} must be at least 1")
        return value

    def amount(self, key: str, default: Any = None) -> float:
        """A number. Raises NotHere for what is none, LeftOpen for what a script leaves open."""
        value = self(key, default)
        if _is_left_open(value):
            raise LeftOpen(key, value)
        try:
            return float("" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            raise NotHere(f"{key}: {value} is not a number. Set it: {key}=0.5 after the file") from None


Condition = Callable[[Look], str]
"""Empty where it holds, else the reason why it does not."""


@dataclass(frozen=True)
class Table:
    """A system's keys for one kind of training. `canonical` is the key under which the rows know a given one;
    `derived` are defaults that follow from what is given, over those of the rows."""

    system: str
    pipeline: str
    rows: tuple[Row, ...]
    sums: Mapping[str, Callable[[Look], Sum]]
    conditions: Mapping[str, Condition]
    canonical: Callable[[str], str] = same
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {}

    @cached_property
    def _exact(self) -> dict[str, Row]:
        return {row.key: row for row in self.rows if "*" not in row.key}

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Row]]:
        return [(_pattern(row.key), row) for row in self.rows if "*" in row.key]

    def row(self, key: str) -> Row | None:
        """The row of a key: its own, or the first pattern that fits."""
        return self._exact.get(key) or next((row for form, row in self._patterns if form.fullmatch(key)), None)

    def nearest(self, key: str) -> str:
        """A sentence with the key that an unknown one may be a slip of, or nothing."""
        match = nearest(key, self._exact, cutoff=0.9)
        return f" Did you mean {match}?" if match else ""


def _pattern(key: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", key)
    return re.compile("".join({"**": ".*", "*": "[^.]+"}.get(part, re.escape(part)) for part in parts))
