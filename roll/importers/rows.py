"""Rows that make up a table of another system's keys: a row for each key, one place for each fact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

import yaml

from roll.configs.problems import nearest
from roll.utils.text import show

Outcome = Literal["mapped", "approximated", "not available", "changes the run", "asks for nothing"]
CHANGES: Outcome = "changes the run"
"""Outcome of keys that cannot be kept although they matter: data, rewards, tools, environments, the loss, what is
trained. What only costs memory or speed is `not available`."""
NOTHING: Any = object()
"""Stands for a missing default: the key has none that matters here."""
RELEASE: Any = object()
"""Stands for the default that the release of the other system has."""
OFF: tuple[Any, ...] = (None, False, 0, "", {}, [])
"""Values of an unknown key that ask for nothing where they are its default."""


@dataclass(frozen=True)
class ApproximateValue:
    """A value that is not the same, and how it differs."""

    value: Any
    note: str


@dataclass(frozen=True)
class PerTargetValues:
    """A value for every target of the row, in their order."""

    values: tuple[Any, ...]


class NotHere(Exception):
    """A value that cannot be had, with the reason and the nearest thing."""


class ChangesRun(NotHere):
    """The same of a value without which the run is not the one that its author meant."""


class HasNoPlace(NotHere):
    """A setting that has no place in this kind of run, of which nothing needs to be said where no key gives it."""


_OF_ENVIRONMENT = re.compile(r"\$\{(?:oc\.env:)?((?<=:)[A-Z_][A-Z0-9_]*|(?<=\{)[1-9])\}")


class LeftOpen(NotHere):
    """A key whose value a script leaves to its shell."""

    def __init__(self, key: str, value: Any):
        names = [f"{name}=... or " for name in _OF_ENVIRONMENT.findall(str(value))]
        super().__init__(f"{value} is left open. Give {''.join(names)}{key}=... after the file")
        self.key = key


class Change(str):
    """A note on what stands beside the keys, without which the run is not the one that its author meant."""

    __slots__ = ()


class AsksNothing(Exception):
    """A value that changes nothing here, with the reason."""


@cache
def data(path: str) -> Any:
    """Return the content of a file of the package's data."""
    text = (files("roll.importers") / "data" / path).read_text(encoding="utf-8")
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()


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
    """Value in the other system if the key is not set: it is written as well."""
    needs: str = ""
    """The condition without which the key asks for nothing."""
    idle: tuple[Any, ...] = ()
    """Values that ask for nothing here."""
    sum: str = ""
    note: str = ""
    outcome: Outcome = "mapped"


@dataclass(frozen=True)
class CombinedKeys:
    """Settings that several keys yield together, with an explanation. `difference` says how they differ from what was
    requested, `differences` the same for single keys; `lost` names keys without a counterpart, with the reason, and
    `changes` those without which the run is not the one that its author meant."""

    settings: Mapping[str, Any]
    text: str
    difference: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    differences: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)
    """Keys that ask for nothing beside the others, with the reason."""


def is_left_open(value: Any) -> bool:
    """Whether a shell or the environment would put something in its place."""
    return isinstance(value, str) and ("$" in value or "`" in value)


class SourceLookup:
    """The value of a key of the other system: as given, or its default there."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]):
        self._values = values
        self._defaults = defaults
        self.unresolved: set[str] = set()
        """Keys without a value that an arithmetic needs."""

    def __call__(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return self._defaults.get(key, default) if value is None else value

    def is_set(self, key: str) -> bool:
        return self._values.get(key) is not None

    def below(self, prefix: str) -> dict[str, Any]:
        """The given keys of a section, without its name."""
        return {key[len(prefix) + 1 :]: value for key, value in self._values.items() if key.startswith(prefix + ".")}

    def section(self, prefix: str) -> Any:
        """The given keys of a section as they were written, with its mappings and lists."""
        return _nested(self.below(prefix))

    def number(self, key: str, default: Any = None) -> int:
        """A whole number. Raises ChangesRun for what is none, LeftOpen for what a script leaves open."""
        value = self(key, default)
        if is_left_open(value):
            raise LeftOpen(key, value)
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ChangesRun(f"{key}: {show(value)} is not a whole number. Set it: {key}=8 after the file")
        return value

    def size(self, key: str, default: Any = None) -> int:
        """A whole number above 0."""
        value = self.number(key, default)
        if value < 1:
            raise ChangesRun(f"{key}: {value} must be at least 1")
        return value

    def amount(self, key: str, default: Any = None) -> float:
        """A number. Raises ChangesRun for what is none, LeftOpen for what a script leaves open."""
        value = self(key, default)
        if is_left_open(value):
            raise LeftOpen(key, value)
        try:
            return float("" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            raise ChangesRun(f"{key}: {show(value)} is not a number. Set it: {key}=0.5 after the file") from None


def _nested(flat: Mapping[str, Any]) -> Any:
    """Example: {"a.0.b": 1, "c": 2} is {"a": [{"b": 1}], "c": 2}."""
    groups = dict[str, dict[str, Any]]()
    for key, value in flat.items():
        head, _, rest = key.partition(".")
        groups.setdefault(head, {})[rest] = value
    made = {head: inner[""] if "" in inner else _nested(inner) for head, inner in groups.items()}
    return list(made.values()) if made and all(key.isdigit() for key in made) else made


Condition = Callable[[SourceLookup], str]
"""Empty where it holds, else the reason why it does not."""


@dataclass(frozen=True)
class Table:
    """A system's keys for one kind of training. `canonical` is the key under which the rows know a given one;
    `derived` are defaults that follow from what is given, over those of the rows, `release` those of the version."""

    system: str
    pipeline: str
    rows: tuple[Row, ...]
    sums: Mapping[str, Callable[[SourceLookup], CombinedKeys]]
    conditions: Mapping[str, Condition]
    canonical: Callable[[str], str] = same
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: {}
    partly_off: tuple[str, ...] = ()
    """Sections of which a switch turns off a part: keys beside it count all the same."""
    release: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the program, over those of a release and under those of a checkout that has these keys."""
    overruling: frozenset[str] = frozenset()
    """Names of a fork's that count before the system's own for the same."""
    place_of: Callable[[str], str | None] = lambda key: None
    """Return where the code of a checkout reads a key; empty where it does not, None without a checkout."""
    is_switch: Callable[[str], bool] = lambda key: False
    """Whether the code of a checkout has a key for nothing but to turn parts of it on."""

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


# Counts of a step in the words of here: what another system says of batches becomes micro batches and accumulation.

_MOST = 10**9  # samples of a step; more are a slip of the pen, and take long to divide


@dataclass(frozen=True)
class Split:
    """How the samples of an update are laid out: `micro` x `passes` x `ranks`."""

    micro: int
    passes: int
    ranks: int
    wanted: int

    @property
    def samples(self) -> int:
        return self.micro * self.passes * self.ranks

    @property
    def text(self) -> str:
        return f"{self.samples} samples per update = {self.micro} x {self.passes} passes x {self.ranks} ranks"

    @property
    def near(self) -> str:
        if self.samples == self.wanted:
            return ""
        return f"{self.wanted} were requested, which do not split over the step and its ranks."


def split(samples_per_step: int, samples_per_update: int, ranks: int, micro: int) -> Split:
    """The samples of an update over ranks and passes. A step has whole updates, and an update whole micro batches:
    the micro batch is the largest that divides and is not above the given one; an update that does not divide the
    step becomes the nearest that does.

    Example: split(1024 * 5, 256 * 5, 8, 4) is 4 x 40 passes x 8 ranks. Raises NotHere for more samples than any step
    has.
    """
    if samples_per_step > _MOST:
        raise ChangesRun(f"{samples_per_step} samples are more than a step can have")
    per_step = max(1, samples_per_step // ranks)
    per_rank = nearest_divisor(max(1, min(samples_per_update // ranks, per_step)), per_step)
    micro = largest_divisor(per_rank, micro)
    return Split(micro, per_rank // micro, ranks, samples_per_update)


def nearest_divisor(value: int, whole: int) -> int:
    """The divisor of `whole` next to a value, the smaller of two. Example: nearest_divisor(7, 32) == 8."""
    return min((d for d in divisors(whole)), key=lambda d: (abs(d - value), d))


def largest_divisor(whole: int, most: int) -> int:
    """Example: largest_divisor(160, 6) == 5."""
    return max(d for d in divisors(whole) if d <= max(1, most))


def divisors(whole: int) -> list[int]:
    """All of them. Raises ValueError above 10^12, which no step has."""
    if whole > 10**12:
        raise ValueError(f"{whole} samples are in no step")
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


def devices(first: int, count: int) -> str:
    """Example: devices(4, 4) == "list(range(4, 8))"."""
    return f"list(range({first}, {first + count}))"
