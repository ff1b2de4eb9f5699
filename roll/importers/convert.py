"""Converts the keys of another system to those of a YAML, with an entry of the report for every key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.importers.rows import (
    CHANGES,
    NOTHING,
    AsksNothing,
    Change,
    ChangesRun,
    Each,
    LeftOpen,
    Look,
    Near,
    NotHere,
    Outcome,
    Row,
    Sum,
    Table,
)
from roll.importers.shell.script import is_open, unbraced
from roll.utils.secrets import MASK, is_secret_key
from roll.utils.text import show

Tree = dict[str, Any]
_WRONG = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What a value of another kind than the key's raises where it is read."""
_NOT_GIVEN: tuple[Any, ...] = (None, "", {}, [])
"""Values of an unknown key that can ask for nothing."""


@dataclass(frozen=True)
class Entry:
    """What became of one key of the source."""

    key: str
    value: Any
    outcome: Outcome
    note: str


@dataclass(frozen=True)
class Imported:
    """The YAML, an entry for every given key, and what was written because the other system has it as a default.
    `left_open`: keys of the source that a script leaves to its shell, without which the YAML is not whole."""

    system: str
    pipeline: str
    tree: Tree
    entries: tuple[Entry, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_open: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """What makes this another run than its author meant: keys with the reason, and notes."""
        keys = [f"{entry.key}: {entry.note}" for entry in self.entries if entry.outcome == CHANGES]
        return (*keys, *(note for note in self.notes if isinstance(note, Change)))

    @property
    def is_as_meant(self) -> bool:
        return not self.changes and not self.left_open


def convert(keys: Iterable[tuple[str, Any]], table: Table, notes: Iterable[str] = ()) -> Imported:
    """The import of the given keys by a table."""
    given = [(key, table.canonical(key), value) for key, value in keys]
    first: dict[str, tuple[str, Any]] = {}
    for key, known_as, value in given:
        held = first.get(known_as)
        is_empty = held is not None and held[1] is None and value is not None
        if held is None or is_empty or _rank(table, key, known_as) < _rank(table, held[0], known_as):
            first[known_as] = (key, value)
    return _Conversion(table, {known_as: value for known_as, (_, value) in first.items()}).run(
        given, {known_as: key for known_as, (key, _) in first.items()}, tuple(notes)
    )


def _rank(table: Table, key: str, known_as: str) -> int:
    """Rank of a key among keys with the same meaning: the system's own name comes before a name of the system it builds
    on."""
    return 1 if key.endswith(known_as) and key != known_as else 0


class _Conversion:
    def __init__(self, table: Table, values: Mapping[str, Any]):
        self._table = table
        self._values = values
        own = {row.key: row.default for row in table.rows if row.default is not NOTHING}
        self._defaults = own | dict(table.derived(values))
        self._look = Look(values, self._defaults)
        self._tree: Tree = {}
        self._writer: dict[str, str] = {}
        self._sums: dict[str, Sum | NotHere] = {}
        self._left_open: set[str] = set()
        self._told: set[str] = set()  # sums of which the entry of a key says how they differ

    def run(self, given: list[tuple[str, str, Any]], names: Mapping[str, str], notes: tuple[str, ...]) -> Imported:
        by_key: dict[str, Entry] = {}
        order = {row.key: i for i, row in enumerate(self._table.rows)}
        known = sorted(self._values.items(), key=lambda item: order.get(item[0], len(order)))
        for known_as, value in known:
            by_key[known_as] = self._entry(names[known_as], known_as, value)
        defaults = dict(self._by_default())
        for row in self._table.rows:
            if row.sum and not self._unmet(row):
                self._sum(row.sum)
        entries = [
            by_key[known_as] if names[known_as] == key else self._again(key, value, names[known_as], known_as)
            for key, known_as, value in given
        ]
        notes = (*notes, *self._untold(names))
        opened = tuple(sorted(names.get(key, key) for key in self._look.left_open | self._left_open))
        return Imported(self._table.system, self._table.pipeline, self._tree, tuple(entries), defaults, notes, opened)

    def _untold(self, names: Mapping[str, str]) -> Iterator[str]:
        """What sums say that no given key says: what they write by default, how it differs, what they cannot serve."""
        for name, made in self._sums.items():
            if isinstance(made, NotHere):
                if name not in self._told:
                    self._lost(made)
                    yield Change(f"By default: {made}") if isinstance(made, ChangesRun) else f"By default: {made}."
                continue
            if name not in self._told and (made.near or name in self._writer.values()):
                yield f"By default: {made.text} {made.near}".rstrip()
            yield from (f"{key}: {why}." for key, why in made.lost.items() if key not in names)
            yield from (Change(f"{key}: {why}") for key, why in made.changes.items() if key not in names)

    def _again(self, key: str, value: Any, counts: str, known_as: str) -> Entry:
        """The entry of a key that another name of it overrules."""
        if value is None or value == self._values[known_as]:
            return Entry(key, value, "asks for nothing", f"{counts} has the same meaning and is used")
        return Entry(key, value, "not to be had", f"{counts} is {show(self._values[known_as])} and counts")

    def _entry(self, key: str, known_as: str, value: Any) -> Entry:
        row = self._table.row(known_as)
        if row is None:
            text = f"the importer does not know this key of {self._table.system}.{self._table.nearest(known_as)}"
            return Entry(key, value, "not to be had" if value in _NOT_GIVEN else CHANGES, text)
        if reason := self._unmet(row):
            outcome = "asks for nothing" if isinstance(reason, str) else self._lost(reason)
            return Entry(key, value, outcome, str(reason))
        if _is_among(value, row.idle):
            return Entry(key, value, "asks for nothing", row.note or "this is always so here")
        if row.sum:
            return self._summed(row, key, known_as, value)
        if not row.targets:
            return Entry(key, value, row.outcome, row.note)
        return self._written(row, key, known_as, value)

    def _written(self, row: Row, key: str, known_as: str, value: Any) -> Entry:
        if value is None or value == "":
            return Entry(key, value, "asks for nothing", "empty: not given")
        try:
            found = row.via(value)
        except NotHere as reason:
            return Entry(key, value, self._lost(reason), str(reason))
        except AsksNothing as reason:
            return Entry(key, value, "asks for nothing", str(reason))
        except _WRONG:
            text = f"{show(value)} is not a valid value of this key"
            if is_open(value):
                self._left_open.add(known_as)
                text = f"the script does not set it: set {' and '.join(row.targets)} in the YAML"
            return Entry(key, value, "not to be had", text)
        note, outcome = row.note, row.outcome
        if isinstance(found, Near):
            note, outcome, found = found.note, "approximated", found.value
        if is_open(value):
            note, outcome, found = "the script does not set it: set it in the YAML", "approximated", unbraced(found)
        told = []
        for target, part in _parts(row, found, known_as):
            writer = self._put(target, part, key)
            shown = MASK if is_secret_key(key) else show(part)
            told.append(f"{target}: {shown}" if writer == key else f"{target} is set by {writer}")
        return Entry(key, value, outcome, "; ".join([*told, *([note] if note else [])]))

    def _summed(self, row: Row, key: str, known_as: str, value: Any) -> Entry:
        made = self._sum(row.sum)
        if isinstance(made, NotHere):
            self._told.add(row.sum)
            return Entry(key, value, self._lost(made), str(made))
        if known_as in made.changes:
            return Entry(key, value, CHANGES, made.changes[known_as])
        if known_as in made.lost:
            return Entry(key, value, "not to be had", made.lost[known_as])
        if known_as in made.idle:
            return Entry(key, value, "asks for nothing", made.idle[known_as])
        near = made.nears.get(known_as, made.near)
        self._told |= {row.sum} if near == made.near else set()
        text = " ".join(filter(None, (made.text, near, row.note)))
        if not (made.settings or near):
            return Entry(key, value, "asks for nothing", text)
        return Entry(key, value, "approximated" if near else "mapped", text)

    def _sum(self, name: str) -> Sum | NotHere:
        if name not in self._sums:
            try:
                made: Sum | NotHere = self._table.sums[name](self._look)
            except NotHere as reason:
                made = reason
            except _WRONG as error:
                made = NotHere(f"a value among the keys of {name} is not what it takes: {error}")
            self._sums[name] = made
            if isinstance(made, Sum):
                for target, value in made.settings.items():
                    self._put(target, value, name)
        return self._sums[name]

    def _by_default(self) -> Iterator[tuple[str, str]]:
        """Writes what holds in the other system where nothing is said, since other defaults hold here."""
        for row in self._table.rows:
            default = self._defaults.get(row.key)
            if not row.targets or default is None or self._values.get(row.key) is not None or self._unmet(row):
                continue
            if _is_among(default, row.idle):
                continue
            try:
                found = row.via(default)
            except NotHere:  # by another key, which has been told
                continue
            near = f": {found.note}" if isinstance(found, Near) else ""
            found = found.value if isinstance(found, Near) else found
            for target, part in _parts(row, found, row.key):
                if self._put(target, part, row.key) == row.key:
                    yield target, f"{row.key} is {show(default)} there{near}"

    def _unmet(self, row: Row) -> str | NotHere:
        """Why the row asks for nothing, or why that cannot be told; empty where it counts."""
        try:
            return self._table.conditions[row.needs](self._look) if row.needs else ""
        except NotHere as reason:
            return reason
        except _WRONG as error:
            return NotHere(f"one of the keys that decide it has an invalid value: {error}")

    def _lost(self, reason: NotHere) -> Outcome:
        """The outcome of a key that is not here for this reason."""
        if isinstance(reason, LeftOpen):
            self._left_open.add(reason.key)
        return CHANGES if isinstance(reason, ChangesRun) else "not to be had"

    def _put(self, target: str, value: Any, writer: str) -> str:
        """Writes a value unless something stands there, and says who wrote what stands there now."""
        *sections, name = target.split(".")
        node = self._tree
        for section in sections:
            node = node.setdefault(section, {})
        if name not in node:
            node[name] = value
            self._writer[target] = writer
        return self._writer.get(target, writer)


def _parts(row: Row, found: Any, known_as: str) -> list[tuple[str, Any]]:
    """Targets with their values; `*` in a target is the last part of the key."""
    values = found.values if isinstance(found, Each) else [found] * len(row.targets)
    targets = [target.replace("*", known_as.rpartition(".")[2]) for target in row.targets]
    return list(zip(targets, values, strict=True))


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Equality that tells 0 from false."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)
