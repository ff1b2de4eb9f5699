"""Rows that make up a table of another system's keys: a row for each key, one place for each fact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from roll.configs.problems import nearest
from roll.configs.sections.model import DTYPES
from roll.configs.sections.run import TRACKER_WORDS, Tracker
from roll.configs.strategies.table import STRATEGIES, spec_of
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


def to(key: str, *targets: str, **more: Any) -> Row:
    return Row(key, targets, **more)


def summed(key: str, sum: str, default: Any = NOTHING, **more: Any) -> Row:
    return Row(key, sum=sum, default=default, **more)


def lacks(key: str, note: str, *idle: Any, default: Any = NOTHING) -> Row:
    """A key that is not available, but at the values that ask for nothing: null and `idle`."""
    return Row(key, note=note, idle=(None, *idle), outcome="not available", default=default)


def changes(key: str, note: str, *idle: Any, default: Any = NOTHING) -> Row:
    """A key that is not available, as of `lacks`, and without which the run is not the one that its author meant."""
    return Row(key, note=note, idle=(None, *idle), outcome=CHANGES, default=default)


def needless(key: str, note: str, **more: Any) -> Row:
    return Row(key, note=note, outcome="asks for nothing", **more)


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
        """Keys that `number_or_open` found open."""

    def __call__(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return self._defaults.get(key, default) if value is None else value

    def is_set(self, key: str) -> bool:
        return self._values.get(key) is not None

    def below(self, prefix: str) -> dict[str, Any]:
        """The given keys of a section, without its name."""
        return {key[len(prefix) + 1 :]: value for key, value in self._values.items() if key.startswith(prefix + ".")}

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

    def number_or_open(self, key: str, default: Any = None) -> int | None:
        """A whole number; None where a script leaves it open, which the report asks for."""
        try:
            return self.number(key, default)
        except LeftOpen:
            self.unresolved.add(key)
            return None

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
    newer_names: Mapping[str, str] = field(default_factory=dict)
    """Names that the source's version has for keys of the rows, where it differs."""

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


# Values of other systems in the words of here.

_TRAINERS: Mapping[str, tuple[str, str]] = {
    "fsdp": ("fsdp2_train", "fsdp2_infer"),
    "fsdp2": ("fsdp2_train", "fsdp2_infer"),
    "megatron": ("megatron_train", "megatron_infer"),
}
_KL: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
_OF_TOKENS = ApproximateValue(
    "optimal_token_baseline",
    "behind the second-longest response of a group there is no baseline, as in newer versions of verl; in older ones "
    "the longest is compared with itself there. Weights of train_infer_correction do not count in baselines",
)
_ESTIMATORS: Mapping[str, str | ApproximateValue] = {
    "gae": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "grpo_passk": "grpo_passk",
    "gpg": ApproximateValue(
        "gpg", "the factor counts groups whose rewards differ, as the paper does; verl rewards other than 0"
    ),
    "gdpo": "gdpo",
    **dict.fromkeys(("optimal_token_baseline", "tir_optimal_token_baseline"), _OF_TOKENS),
    "asymre": "asymre",
    "reinforce": "reinforce",
    "raft": "raft",
    "opmd": "opmd",
}
_LACKING = {
    "codapo": "it weighs answers by their confidence and by how hard their task is; difficulty_loss_weight does the "
    "latter",
}
"""Estimators that are known and not here, with the nearest thing."""
_SCHEDULES: Mapping[str, str] = {
    "constant": "constant_with_warmup",
    "constant_with_warmup": "constant_with_warmup",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
}
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_TRACKERS: tuple[str, ...] = get_args(Tracker)


def word(table: Mapping[str, Any], what: str) -> Callable[[Any], Any]:
    """A translation by a table; other words are refused with those there are."""

    def translated(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in table:
            raise ChangesRun(f"there is no {what} {show(value)} here; there are {', '.join(table)}")
        return table[value]

    return translated


def trainer(value: Any) -> Any:
    return _strategy(value, 0)


def scorer(value: Any) -> Any:
    return _strategy(value, 1)


def _strategy(value: Any, which: int) -> Any:
    name = word(_TRAINERS, "trainer")(value)[which]
    return ApproximateValue(name, "torch's second FSDP stands for its first") if value == "fsdp" else name


def engine(value: Any) -> Any:
    name = f"{value}_infer" if value == "hf" else str(value)
    if "generate" not in spec_of(name).classes:
        there = ", ".join(spec.name for spec in STRATEGIES.values() if "generate" in spec.classes)
        raise ChangesRun(f"there is no engine {show(value)} here; there are {there}")
    return name


def rollout_engine(value: Any) -> Any:
    """The same; another plain engine samples the same answers in other time, where one of a project's own may do more.
    Raises ChangesRun for one of a project's own."""
    name = {"sglang_async": "sglang"}.get(str(value), value)
    if name in ("trtllm", "tensorrt_llm"):
        return ApproximateValue("vllm", f"there is no engine {show(value)} here; vllm stands in")
    return engine(name)


def kl(value: Any) -> Any:
    """A `+` behind the name asks verl for the gradient of k2 whatever the value is."""
    if isinstance(value, str) and value.endswith("+"):
        return ApproximateValue(
            kl(value[:-1]), "the gradient is that of the named estimator, where + asks for that of k2"
        )
    if value == "full":
        raise ChangesRun("a KL over the whole vocabulary is for the loss here (kl_loss_type), not for the reward")
    return word(_KL, "estimator of the KL")(value)


def kl_loss(value: Any) -> Any:
    return value if value == "full" else kl(value)


def estimator(value: Any) -> Any:
    if str(value) in _LACKING:
        raise ChangesRun(f"there is no estimator {value} here: {_LACKING[str(value)]}")
    return word(_ESTIMATORS, "estimator")(value)


def aggregation(value: Any) -> Any:
    if value == "seq-mean-token-sum-norm":
        return ApproximateValue(
            value,
            "here it is also divided by the rows of the update, and by response_length for the padded width: a "
            "coefficient beside it keeps its weight, max_grad_norm meets a smaller gradient. loss_scale_factor changes "
            "the scale",
        )
    if value == "token-sum":
        return ApproximateValue(
            "seq-mean-token-sum",
            "the same divided by the rows of the update with a response: Adam's steps do not change, max_grad_norm "
            "meets a gradient that is so many times smaller; a KL or entropy beside it keeps its weight",
        )
    if value == "token-mean":
        return ApproximateValue(
            value,
            "a mean over all tokens of an update, as on verl's engines (0.9, or use_legacy_worker_impl: disable); its "
            "older workers take the mean of each micro batch, which weighs by its rows: of one row it is "
            "seq-mean-token-mean",
        )
    return word({name: name for name in AGGREGATIONS}, "loss_agg_mode")(value)


def loss_scale(value: Any) -> Any:
    return ApproximateValue(
        number(value),
        "here the loss is also divided by the rows of the update: this number over the rows of a micro batch is verl's "
        "scale",
    )


def schedule(value: Any) -> Any:
    return word(_SCHEDULES, "schedule")(value)


def router_replay(value: Any) -> Any:
    if value == "R3":
        return ApproximateValue(
            "R2",
            "the experts of the old log-probs' pass; R3, those of the rollout, goes with sglang and hf_infer alone",
        )
    return word({"disabled": "disable", "R2": "R2"}, "mode of router replay")(value)


def kernel(value: Any) -> Any:
    """Converts the kernel of fused log-probs. The choice changes no result."""
    if value == "triton":
        return ApproximateValue(
            "torch", "the same log-probs and entropy in tiles of torch's; Triton's kernel saves time"
        )
    return word({"torch": "torch"}, "kernel")(value)


def dtype(value: Any) -> Any:
    return word({name: name for name in DTYPES.values()} | DTYPES, "number format")(value)


def run_name(value: object) -> Any:
    """Converts the name of a run, which may be a path there."""
    name = re.sub(r"[/\\]+", "-", value.strip("/\\")) if isinstance(value, str) and not is_left_open(value) else value
    if name == value:
        return value
    return ApproximateValue(name, "a name of a run has no / here") if name else value


def adam(value: object) -> object:
    """Converts the name of an optimizer."""
    if str(value) == "AdamW8bit":
        return "adamw_bnb_8bit"
    if str(value).lower() not in ("adam", "adamw"):
        raise ChangesRun(f"there is no optimizer {value} here; there are adamw_torch, adamw_bnb_8bit and muon")
    return "adamw_torch"


_TRACKER_WORDS = {**TRACKER_WORDS, "file": "jsonl"}


def trackers(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise NotHere(f"{show(value)} names no trackers; there are {', '.join(_TRACKERS)}")
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    known = list(dict.fromkeys(_TRACKER_WORDS.get(name, name) for name in names))
    here = [name for name in known if name in _TRACKERS]
    if lost := [name for name in known if name not in _TRACKERS]:
        return ApproximateValue(here or ["jsonl"], f"{', '.join(lost)}: not here; there are {', '.join(_TRACKERS)}")
    return here


def chat_template(value: Any) -> str:
    """The text of a Jinja template; what a shell would read from a file is none."""
    if "{{" in str(value) or "{%" in str(value):
        return str(value)
    raise ChangesRun("global_template takes the text of a Jinja template, or the path of a file with it")


def files(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def positive(value: Any) -> int:
    """Counts of which -1 and null mean never or all."""
    return int(value) if int(value) > 0 else -1


def opposite(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return not value


def number(value: Any) -> float:
    """Converts a number, also from a text such as 1e-6, which YAML does not read as a number."""
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def betas(value: Any) -> PerTargetValues:
    """Two numbers, also as the text of a list that quotes kept together."""
    first, second = value.strip("[]() ").split(",") if isinstance(value, str) else value
    return PerTargetValues((number(first), number(second)))
