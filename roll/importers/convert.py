"""Converts the keys of another system to those of a YAML, with an entry of the report for every key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from roll.configs.base import join
from roll.configs.load.overrides import apply_overrides
from roll.configs.load.yaml_file import read_yaml
from roll.errors import ConfigError
from roll.importers.rows import (
    CHANGES,
    NOTHING,
    OFF,
    RELEASE,
    ApproximateValue,
    AsksNothing,
    Change,
    ChangesRun,
    CombinedKeys,
    HasNoPlace,
    LeftOpen,
    NotHere,
    Outcome,
    PerTargetValues,
    Row,
    SourceLookup,
    Table,
    is_left_open,
)
from roll.importers.script import Command, command_of, is_open, is_output, is_reference, unbraced, undated
from roll.importers.verl.files import Composed, of_command, of_file
from roll.utils.secrets import MASK, is_secret_key
from roll.utils.text import show

Tree = dict[str, Any]
_WRONG = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""Errors raised when a value has another type than its key."""
_SWITCHES = ("enable", "enabled")
_OUTPUT = "the script takes it from a program, which an import does not run: give it after the file"
_DATED = "the date that the script adds at its start is left out"
_ANEW = ": there each start has a folder of its own, in which it finds nothing to resume"
_OPEN = "the script leaves it open: set it in the YAML"
_COUNT = re.compile(r"(length|steps|epochs|size)$")
"""Targets that take a number, without which nothing starts."""
_READ = re.compile(r"(^pretrain|file_name|dataset_name|name_or_path)$")
"""Targets that name what a run reads."""
UNKNOWN = "the importer does not know"
_PASSED_ON = re.compile(r"kwargs|override|params|_config\b")
"""Parts of keys whose section goes to another library as a whole."""
_TERM = re.compile(r"(coef|coeff|label_smoothing|bonus)$")
"""Unknown keys that weigh a term of a loss or a reward."""
_NOT_GIVEN: tuple[Any, ...] = (None, "", {}, [])
"""Values of an unknown key that can ask for nothing."""


@dataclass(frozen=True)
class Entry:
    """Result for one key of the source."""

    key: str
    value: Any
    outcome: Outcome
    note: str


@dataclass(frozen=True)
class Imported:
    """The YAML, an entry for every given key, and what was written because the other system has it as a default.
    `unresolved`: keys of the source that a script leaves to its shell, without which the YAML is not whole."""

    system: str
    pipeline: str
    tree: Tree
    entries: tuple[Entry, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    """Places of keys that are not where most are: in a file of one's own beside a command, or in words beside one."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes that make this another run than its author meant: keys with the reason, and notes."""
        keys = [f"{entry.key}: {entry.note}" for entry in self.entries if entry.outcome == CHANGES]
        return (*keys, *(note for note in self.notes if isinstance(note, Change)))

    @property
    def is_as_meant(self) -> bool:
        return not self.changes and not self.unresolved


def convert(
    keys: Iterable[tuple[str, Any]], table: Table, notes: Iterable[str] = (), of_script: bool = False
) -> Imported:
    """The import of the given keys by a table. `of_script`: what stands in backticks is the output of a program, and
    in a YAML a text."""
    key_values = [(key, table.canonical(key), value) for key, value in keys]
    first: dict[str, tuple[str, Any]] = {}
    for key, known_as, value in key_values:
        held = first.get(known_as)
        is_empty = held is not None and held[1] is None and value is not None
        if held is None or is_empty or _rank(table, key, known_as) < _rank(table, held[0], known_as):
            first[known_as] = (key, value)
    return _Conversion(table, {known_as: value for known_as, (_, value) in first.items()}, of_script).run(
        key_values, {known_as: key for known_as, (key, _) in first.items()}, tuple(notes)
    )


def _rank(table: Table, key: str, known_as: str) -> int:
    """Rank of a key among keys with the same meaning: the system's own name comes before a name of the system it builds
    on."""
    return -1 if key in table.overruling else 1 if key.endswith(known_as) and key != known_as else 0


class _Conversion:
    def __init__(self, table: Table, values: Mapping[str, Any], of_script: bool):
        self._table, self._of_script = table, of_script
        own = {row.key: row.default for row in table.rows if row.default not in (NOTHING, RELEASE)}
        known = (row.key for row in table.rows if row.default is RELEASE)
        told = {key: table.release[key] for key in known if key in table.release}
        self._known = {**told, **own, **table.derived(values)}
        self._defaults = {**table.release, **self._known}
        self._values: dict[str, Any] = {}
        self._source = SourceLookup(self._values, self._defaults)
        self._as_written = {key: self._with_defaults(value) for key, value in values.items()}
        self._values |= {key: undated(value) if of_script else value for key, value in self._as_written.items()}
        self._tree: Tree = {}
        self._writer: dict[str, str] = {}
        self._sums: dict[str, CombinedKeys | NotHere] = {}
        self._unresolved: set[str] = set()
        self._noted_sums: set[str] = set()  # sums of which the entry of a key says how they differ

    def _with_defaults(self, value: Any) -> Any:
        """The same with references to keys that only the defaults of the other system have.

        Example: "run-${data.train_batch_size}" is run-1024.
        """
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _PLAIN_REFERENCE.fullmatch(value)
        if whole and (default := self._default_of(whole[1])) is not None:
            return default
        defaults = {name: self._default_of(name) for name in _PLAIN_REFERENCE.findall(value)}
        return _PLAIN_REFERENCE.sub(lambda it: it[0] if defaults[it[1]] is None else str(defaults[it[1]]), value)

    def _default_of(self, key: str) -> str | int | float | None:
        value = self._defaults.get(self._table.canonical(key)) if "." in key else None
        return value if isinstance(value, str | int | float) else None

    def run(self, key_values: list[tuple[str, str, Any]], names: Mapping[str, str], notes: tuple[str, ...]) -> Imported:
        by_key: dict[str, Entry] = {}
        order = {row.key: i for i, row in enumerate(self._table.rows)}
        known = sorted(self._as_written.items(), key=lambda item: order.get(item[0], len(order)))
        for known_as, value in known:
            by_key[known_as] = self._entry(names[known_as], known_as, value)
        defaults = dict(self._by_default())
        for row in self._table.rows:
            if row.sum and not self._unmet(row):
                self._sum(row.sum)
        entries = [
            by_key[known_as] if names[known_as] == key else self._again(key, value, names[known_as], known_as)
            for key, known_as, value in key_values
        ]
        notes = (*notes, *self._unnoted(names))
        opened = tuple(sorted(names.get(key, key) for key in self._source.unresolved | self._unresolved))
        return Imported(self._table.system, self._table.pipeline, self._tree, tuple(entries), defaults, notes, opened)

    def _unnoted(self, names: Mapping[str, str]) -> Iterator[str]:
        """Yield notes about combined keys that no key of the source reports: their defaults, differences, and keys
        without effect."""
        for name, made in self._sums.items():
            if isinstance(made, NotHere):
                if name not in self._noted_sums and not isinstance(made, HasNoPlace):
                    self._lost(made)
                    yield Change(f"By default: {made}") if isinstance(made, ChangesRun) else f"By default: {made}."
                continue
            if name not in self._noted_sums and (made.difference or name in self._writer.values()):
                yield f"By default: {made.text} {made.difference}".rstrip()
            yield from (f"{key}: {why}." for key, why in made.lost.items() if key not in names)
            yield from (Change(f"{key}: {why}") for key, why in made.changes.items() if key not in names)

    def _again(self, key: str, value: Any, counts: str, known_as: str) -> Entry:
        """The entry of a key that another name of it overrules."""
        if value is None or value == self._as_written[known_as]:
            return Entry(key, value, "asks for nothing", f"{counts} has the same meaning and is used")
        return Entry(key, value, "not available", f"{counts} is {show(self._as_written[known_as])} and counts")

    def _entry(self, key: str, known_as: str, value: Any) -> Entry:
        row = self._table.row(known_as)
        if (row is None or not (row.targets or row.sum)) and (why := self._is_off(known_as, value)):
            return Entry(key, value, "asks for nothing", why)
        if row is None:
            if value in OFF and self._table.release.get(known_as, NOTHING) == value:
                return Entry(key, value, "asks for nothing", "off, which is the default of the program's own files")
            place = self._table.place_of(key)
            if place == "" and not _PASSED_ON.search(key):
                return Entry(key, value, "asks for nothing", "no file of the checkout names it")
            if isinstance(value, int | float) and value == 0 and _TERM.search(key):
                return Entry(key, value, "asks for nothing", "a term of weight 0")
            if value is False and self._table.is_switch(key):
                return Entry(key, value, "asks for nothing", "a switch of the checkout's, which is off")
            text = f"{UNKNOWN} this key of {self._table.system}.{self._table.nearest(known_as)}"
            text += f" See {place}." if place else ""
            return Entry(key, value, "not available" if value in _NOT_GIVEN else CHANGES, text)
        if reason := self._unmet(row):
            outcome = "asks for nothing" if isinstance(reason, str) else self._lost(reason)
            return Entry(key, value, outcome, str(reason))
        if _is_among(value, row.idle):
            return Entry(key, value, "asks for nothing", row.note or "this is so here without a key")
        if row.sum:
            return self._summed(row, key, known_as, value)
        if not row.targets:
            return Entry(key, value, row.outcome, row.note)
        return self._written(row, key, known_as, value)

    def _is_off(self, known_as: str, value: Any) -> str:
        """Why a key that is not here asks for nothing beside a switch that is off; empty where it is not so."""
        section, _, name = known_as.rpartition(".")
        if name in _SWITCHES and value is False:
            return "a switch that is off"
        while section:
            for switch in _SWITCHES:
                if section not in self._table.partly_off and self._values.get(f"{section}.{switch}") is False:
                    return f"{section}.{switch} is off"
            section = section.rpartition(".")[0]
        return ""

    def _written(self, row: Row, key: str, known_as: str, value: Any) -> Entry:
        if value is None or value == "":
            return Entry(key, value, "asks for nothing", "empty: not given")
        try:
            converted = row.via(undated(value) if self._of_script else value)
        except NotHere as reason:
            return Entry(key, value, self._lost(reason), str(reason))
        except AsksNothing as reason:
            return Entry(key, value, "asks for nothing", str(reason))
        except _WRONG:
            if is_left_open(value):
                self._unresolved.add(known_as)
                text = f"the script leaves it open: set {' and '.join(row.targets)} in the YAML"
                return Entry(key, value, "not available", text)
            return Entry(key, value, CHANGES, f"{show(value)} is not a valid value of this key")
        note, outcome = row.note, row.outcome
        if isinstance(converted, ApproximateValue):
            note, outcome, converted = converted.note, "approximated", converted.value
        if self._is_output(value):
            note, outcome = _DATED + (_ANEW if known_as.endswith("_dir") else ""), "approximated"
            if is_output(converted):
                note = _OUTPUT
                self._unresolved.add(known_as)
        elif self._is_open(value):
            note, outcome = _OPEN, "approximated"
            is_whole = isinstance(value, list) or str(value).startswith("$((")
            is_lacking = is_reference(value) and any(map(_READ.search, row.targets))
            if is_whole or is_lacking or any(map(_COUNT.search, row.targets)):
                self._unresolved.add(known_as)
        texts = []
        for target, part in _parts(row, unbraced(converted), known_as):
            writer = self._put(target, part, key)
            shown = MASK if is_secret_key(key) else show(part)
            texts.append(f"{target}: {shown}" if writer == key else f"{target} is set by {writer}")
        return Entry(key, value, outcome, "; ".join([*texts, *([note] if note else [])]))

    def _summed(self, row: Row, key: str, known_as: str, value: Any) -> Entry:
        made = self._sum(row.sum)
        if isinstance(made, NotHere):
            self._noted_sums.add(row.sum)
            reason = str(made)
            if isinstance(made, LeftOpen) and made.key != known_as:
                self._lost(made)
                made = LeftOpen(known_as, value) if is_left_open(value) else made
                waits = f"it counts as soon as {made.key} is given, which the script leaves open"
                reason = str(made) if made.key == known_as else waits
            return Entry(key, value, self._lost(made), reason)
        if known_as in made.changes:
            return Entry(key, value, CHANGES, made.changes[known_as])
        if known_as in made.lost:
            return Entry(key, value, "not available", made.lost[known_as])
        if known_as in made.idle:
            return Entry(key, value, "asks for nothing", made.idle[known_as])
        near = made.differences.get(known_as, made.difference)
        self._noted_sums |= {row.sum} if made.difference in ("", near) else set()
        text = " ".join(filter(None, (made.text, near, row.note)))
        if not (made.settings or near):
            return Entry(key, value, "asks for nothing", text)
        if self._is_output(value):
            is_lacking = is_output(undated(value))
            self._unresolved |= {known_as} if is_lacking else set()
            return Entry(key, value, "approximated", f"{text} {_OUTPUT if is_lacking else _DATED}.")
        if self._is_open(value):
            return Entry(key, value, "approximated", f"{text} {_OPEN}.")
        return Entry(key, value, "approximated" if near else "mapped", text)

    def _is_output(self, value: Any) -> bool:
        return self._of_script and is_output(value)

    def _is_open(self, value: Any) -> bool:
        return is_open(value) and (self._of_script or not is_output(value))

    def _sum(self, name: str) -> CombinedKeys | NotHere:
        if name not in self._sums:
            try:
                made: CombinedKeys | NotHere = self._table.sums[name](self._source)
            except NotHere as reason:
                made = reason
            except _WRONG as error:
                made = ChangesRun(f"a value among the keys of {name} is not what it takes: {error}")
            self._sums[name] = made
            if isinstance(made, CombinedKeys):
                for target, value in made.settings.items():
                    self._put(target, value, name)
        return self._sums[name]

    def _by_default(self) -> Iterator[tuple[str, str]]:
        """Writes what holds in the other system where nothing is said, since other defaults hold here."""
        for row in self._table.rows:
            default = self._known.get(row.key)
            if not row.targets or default is None or self._values.get(row.key) is not None or self._unmet(row):
                continue
            if _is_among(default, row.idle):
                continue
            try:
                converted = row.via(default)
            except (NotHere, AsksNothing):  # by another key, which has been told
                continue
            note = row.note if row.outcome == "approximated" else ""
            near = f": {converted.note}" if isinstance(converted, ApproximateValue) else f": {note}" if note else ""
            converted = converted.value if isinstance(converted, ApproximateValue) else converted
            for target, part in _parts(row, converted, row.key):
                if self._put(target, part, row.key) == row.key:
                    yield target, f"{row.key.removeprefix('trinity.')} is {show(default)} there{near}"

    def _unmet(self, row: Row) -> str | NotHere:
        """Why the row asks for nothing, or why that cannot be told; empty where it counts."""
        try:
            return self._table.conditions[row.needs](self._source) if row.needs else ""
        except NotHere as reason:
            return reason
        except _WRONG as error:
            return ChangesRun(f"one of the keys that decide it has an invalid value: {error}")

    def _lost(self, reason: NotHere) -> Outcome:
        """The outcome of a key that is not here for this reason."""
        if isinstance(reason, LeftOpen):
            self._unresolved.add(reason.key)
        return CHANGES if isinstance(reason, ChangesRun) else "not available"

    def _put(self, target: str, value: Any, writer: str) -> str:
        """Writes a value unless something stands there, and says who wrote what stands there now."""
        *sections, name = target.split(".")
        node = self._tree
        for section in sections:
            node = node.setdefault(section, {})
        if name not in node:
            node[name] = unbraced(value)
            self._writer[target] = writer
        return self._writer.get(target, writer)


def _parts(row: Row, converted: Any, known_as: str) -> list[tuple[str, Any]]:
    """Targets with their values; `*` in a target is the last part of the key."""
    values = converted.values if isinstance(converted, PerTargetValues) else [converted] * len(row.targets)
    targets = [target.replace("*", known_as.rpartition(".")[2]) for target in row.targets]
    return list(zip(targets, values, strict=True))


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Equality that tells 0 from false."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


# What is imported: the keys of a foreign configuration with their values, in the order in which they are written.

YAML_ENDINGS = (".yaml", ".yml")
_MOST_REFERENCES, _DEEPEST = 50, 9
_PLAIN_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_REFERENCE = re.compile(r"\$\{(oc\.select:)?(\.*)([\w.]+)(?:,\s*([^{}]*))?\}")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*|[1-9])=(.*)", re.DOTALL)
_OF_ENVIRONMENT = re.compile(r"\$\{oc\.env:([^{},]*)[^{}]*\}")


@dataclass(frozen=True)
class SourceKeys:
    """`tree` as it is written, `keys` with `${...}` resolved where they lead somewhere. A text that names the
    environment stays as it is: what a machine has in it does not belong into a file. `overrides`: as written.
    `taken`: keys that Hydra is told to take away (`~key`) and that only the defaults of the other system have.
    `groups`: words that choose one of its files for a section; `bases`: verl's own configurations under them, `notes`:
    what became of the files."""

    tree: Mapping[str, Any]
    keys: tuple[tuple[str, Any], ...]
    command: Command | None = None
    overrides: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(
    path: Path | None, overrides: Sequence[str] = (), training: int | None = None, gpus: int | None = None
) -> SourceKeys:
    """The keys of a YAML, or of the command in a shell script, and of overrides. Words such as `N=4` set variables of
    its environment, and `1=x` its arguments. `training`: which of several commands of a script; None takes the longest.
    `gpus`: those of a machine, for a script that counts them. Raises ConfigError for what cannot be read."""
    command, composed = None, Composed()
    given = [match for match in map(_VARIABLE.fullmatch, overrides) if match is not None] if path else []
    variables = {match[1]: match[2] for match in given}
    overrides = [word for word in overrides if word not in [match[0] for match in given]]
    if training is not None and (path is None or path.suffix in YAML_ENDINGS):
        raise ConfigError("--training chooses among the commands of a script, and there is none.")
    if path is not None and path.suffix in YAML_ENDINGS:
        tree = read_yaml(path)
        composed = of_file(path, tree) or Composed(tree)
    elif path is not None:
        command = command_of(path, training, variables, gpus)
        composed = of_command(command, path)
    return source_keys(composed, overrides, command, variables)


def source_keys(
    found: Composed,
    overrides: Sequence[str] = (),
    command: Command | None = None,
    variables: Mapping[str, str] | None = None,
) -> SourceKeys:
    """Collect the keys of files, of a command's words and of overrides. What they take from the environment has the
    value that the script gives it, or that of `variables`."""
    tree = found.tree
    words = [(*command.overrides,) if command else (), tuple(overrides)]
    groups = [text for texts in words for text in texts if _chooses(text, [*words[0], *words[1]])]
    own = [[text for text in texts if text not in groups and not _is_hydras(text)] for texts in words]
    taken = [text for texts in (_engine(groups), *own) for text in _changed(tree, texts)]
    if command is not None and command.unread:
        asked = {name.strip() for name in _OF_ENVIRONMENT.findall(str(tree))}
        command = replace(command, unread=tuple(name for name in command.unread if name not in asked))
    tree = _with_environment(tree, {**(variables or {}), **(command.environment if command else {})})
    of_hydra = [text.lstrip("+~").partition("=") for texts in words for text in texts if _is_hydras(text)]
    keys = (*resolved_leaves(tree), *((key, value) for key, _, value in of_hydra))
    return SourceKeys(
        tree,
        keys,
        command,
        (*words[0], *words[1]),
        tuple(taken),
        tuple(groups),
        tuple(found.bases),
        tuple(found.remarks),
    )


def _with_environment(node: Any, variables: Mapping[str, str]) -> Any:
    """Put the values of variables that a script sets in place of `${oc.env:NAME}` and `${oc.env:NAME,default}`."""
    if isinstance(node, dict):
        return {key: _with_environment(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_environment(value, variables) for value in node]
    if not isinstance(node, str):
        return node
    return _OF_ENVIRONMENT.sub(lambda found: variables.get(found[1].strip(), found[0]), node)


def _chooses(text: str, texts: Sequence[str]) -> bool:
    """True for Hydra's choice of a file for a section, such as `optim=fsdp` beside `optim.lr=1e-5`."""
    key, equals, value = text.partition("=")
    is_word = bool(equals) and "." not in key and value.isidentifier()
    is_section = key in _SECTIONS or any(other.lstrip("+").startswith(f"{key}.") for other in texts)
    return is_word and is_section


_SECTIONS = ("engine", "optim")
"""Sections of verl's fine-tuning, for each of which it has several files."""


def _is_hydras(text: str) -> bool:
    """True for a setting of Hydra itself, such as where it logs."""
    return text.lstrip("+~").startswith("hydra.")


def _engine(groups: Sequence[str]) -> list[str]:
    """Return the overrides that follow from the choice of an engine; explicit overrides come later and win."""
    return [f"engine.strategy={text.partition('=')[2]}" for text in groups if text.startswith("engine=")]


def _changed(tree: dict[str, Any], texts: Sequence[str]) -> list[str]:
    """Changes the tree; returns the keys that are to be taken away and are not there."""
    others = [text for text in texts if not text.startswith("~")]
    apply_overrides(tree, others)
    taken = [text[1:].partition("=")[0] for text in texts if text.startswith("~")]
    there = [key for key in taken if _selected(tree, key) is not NOWHERE]
    apply_overrides(tree, [f"~{key}" for key in there])
    return [key for key in taken if key not in there]


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; lists of sections are gone through by number, other lists are values.

    Example: {"a": {"b": 1}, "c": [{"d": 2}]} has a.b and c.0.d.
    """
    for key, value in tree.items():
        here = join(path, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for i, item in enumerate(value):
                yield from leaves(item, f"{here}.{i}")
        else:
            yield here, value


def resolved_leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what `leaves` does, with values of the tree in place of its references."""
    for key, written in leaves(tree):
        yield key, resolved(key, written, lambda name: _selected(tree, name))


def resolved(key: str, written: Any, look: Callable[[str], Any], depth: int = 0) -> Any:
    """The value of a key with that of others in the place of `${a.b}`, `${..b}` and `${oc.select:a.b,1}`; what leads
    nowhere stays as it is. No other resolver is asked: of the environment least. `look`: a value, or NOWHERE."""
    if not isinstance(written, str) or depth > _DEEPEST or not 0 < written.count("${") <= _MOST_REFERENCES:
        return written

    def led(found: re.Match[str]) -> Any:
        section = key.split(".")[: -len(found[2])] if found[2] else []
        name = ".".join([*section, found[3]])
        if (value := look(name)) is not NOWHERE:
            return resolved(name, value, look, depth + 1)
        return yaml.safe_load(found[4]) if found[4] else None if found[1] else NOWHERE

    def part(found: re.Match[str]) -> str:
        value = led(found)
        return str(value) if isinstance(value, str | int | float) and "${" not in str(value) else found[0]

    if whole := _REFERENCE.fullmatch(written):
        return written if (value := led(whole)) is NOWHERE else value
    return _REFERENCE.sub(part, written)


NOWHERE = object()


def _selected(tree: Any, key: str) -> Any:
    """The value of a key, which may be null; NOWHERE where there is none."""
    for name in key.split("."):
        tree = dict(enumerate(tree)) if isinstance(tree, list) else tree
        name = int(name) if isinstance(tree, dict) and name not in tree and name.isdecimal() else name
        if not isinstance(tree, Mapping) or name not in tree:
            return NOWHERE
        tree = tree[name]
    return tree
