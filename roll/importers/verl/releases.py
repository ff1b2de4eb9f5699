"""Defaults of verl's releases, and which of them a configuration is for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from roll.errors import ConfigError
from roll.importers.convert import NOWHERE, leaves, resolved
from roll.importers.row_files import expanded
from roll.importers.rows import OFF, RELEASE, Change, Row, Table, data
from roll.importers.verl.common import (
    ACTOR,
    AVERAGES_PASSES,
    CRITIC,
    IS_OLD,
    MEGATRON,
    MODEL,
    REF,
    ROLLOUT,
    SPLITS,
    strategy_of_group,
)
from roll.run.spec import PIPELINES
from roll.utils.text import show

PPO, PPO_MEGATRON, SFT_ALONE, SFT_ENGINE = "ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine"
_GONE = "-gone-"
_GIVEN_ONLY = re.compile(r"data\.(train|val)_files|critic\.model\.(tokenizer_)?path|reward_model\.model\.path")
"""Files that verl's configurations name as examples, and no run is meant to read."""

_OF_CODE: Mapping[str, Any] = expanded(data("verl/of_code.yaml"))
"""Behavior of a release whose configuration has no such key."""
_OF_SPEED = re.compile(
    r".*(disable_gradient_checkpointing|max_running_requests|batch\w*|accumulation_steps|sequence_packing|exp_name)"
    r"|.*(strategy_config|tracker_kwargs|router_replay)\..*|track_with|pretrain|resume_from_checkpoint"
)
"""Keys here that change the speed or the names of a run."""
_UNUSED = re.compile(r"_target_$|^hydra\.|^defaults$|profiler|nsys|transfer_queue|ray_kwargs|ray_init")
ON_THERE = "On there, and not read: "
_OF_PROMPTS = re.compile(r"data\..*(template|prompt_(type|name|style|format))")
_OR_CLIP_RATIO = ("clip_ratio_low", "clip_ratio_high")
"""Keys of which null is a value: clip_ratio counts."""


@dataclass(frozen=True)
class Release:
    """A composed configuration of verl's, by full keys. `name`: the file, `origin`: the release."""

    name: str
    origin: str
    keys: Mapping[str, Any]

    def defaults(self, given: Mapping[str, Any], known_as: Callable[[str], str]) -> dict[str, Any]:
        """Return the values by their names in the tables. References lead to what is given."""
        said = {key: value for key, value in given.items() if value is not None or key.endswith(_OR_CLIP_RATIO)}
        whole, made = {**self.keys, **said}, dict[str, Any]()
        for key in self.keys:
            value = resolved(key, whole[key], lambda name: whole.get(name, NOWHERE))
            is_open = isinstance(value, str) and ("${" in value or value == "???")
            if value is not None and not is_open and not _GIVEN_ONLY.fullmatch(key):
                made.setdefault(known_as(key), value)
        for key, value in _OF_CODE.items():
            is_new_name = self.name == SFT_ENGINE and key in ("model.strategy", "optim.lr_scheduler")
            if self.keys.get(key, "???") == "???" and not is_new_name:
                made.setdefault(key, value)
        if "algorithm.use_kl_in_reward" not in self.keys:
            made["algorithm.use_kl_in_reward"] = not whole.get(f"{ACTOR}.use_kl_loss")
        return made

    def over(self, table: Table, given: Mapping[str, Any]) -> Table:
        """The table with the defaults of this release."""
        values = self.defaults(given, table.canonical)
        values |= {IS_OLD: self.origin == "v0.1", AVERAGES_PASSES: self.name == SFT_ALONE}
        values |= {"data.multiturn.enable": True} if self.name == SFT_ENGINE else {}
        is_checkout, of_table = self.origin not in releases(self.name), table.derived
        own = {name: value for name, value in table.program.items() if not (is_checkout and self.has(name, table))}
        return replace(
            table,
            release={**values, **own},
            derived=lambda given: {**of_table(given), **own},
        )

    def has(self, name: str, table: Table) -> bool:
        return any(table.canonical(key) == name for key in self.keys)


@cache
def releases(name: str) -> Mapping[str, Release]:
    """The releases with a configuration of this name, the oldest first."""
    lines = json.loads((files("roll.importers") / "data" / "verl.json").read_text(encoding="utf-8"))
    tree, made = dict[str, Any](), dict[str, Release]()
    for each, tag, change in lines:
        if each == name:
            _change(tree, change)
            made[tag] = Release(name, tag, dict(leaves(tree)))
    return made


def _change(tree: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if value == _GONE:
            tree.pop(key, None)
        elif isinstance(value, dict) and value and isinstance(held := tree.get(key), dict):
            _change(held, value)
        else:
            tree[key] = value


@cache
def _every_key() -> frozenset[str]:
    every = (release for name in (PPO, PPO_MEGATRON, SFT_ALONE, SFT_ENGINE) for release in releases(name).values())
    return frozenset(key for release in every for key in release.keys)


def fitting(name: str, given: Mapping[str, Any], version: str | None = None) -> tuple[list[Release], list[str]]:
    """Return the releases that have most of the keys, the newest first, and keys that the first of them lacks.

    Raises ConfigError for a version that has no such configuration.
    """
    there = releases(name)
    if version is not None and version not in there:
        raise ConfigError(f"--version {version}: {name} is known for {', '.join(there)}.")
    keys = _every_key() & given.keys()
    lacking = {tag: [key for key in keys if key not in there[tag].keys] for tag in reversed(list(there))}
    if version is not None:
        return [there[version]], lacking[version]
    fewest = min(map(len, lacking.values()))
    tags = [tag for tag, lost in lacking.items() if len(lost) == fewest]
    return [there[tag] for tag in tags], lacking[tags[0]]


def of_checkout(
    name: str, path: str, tree: Mapping[str, Any], below: Release | None, table: Table, given: Mapping[str, Any]
) -> tuple[Table, list[str]]:
    """The table with the defaults of files beside the script, which build on a release `below` if they do not have it.
    Those that verl's own release has not are written."""
    keys = {**(below.keys if below else {}), **dict(leaves(tree))}
    keys |= {key: None for key in keys if key.endswith(_OR_CLIP_RATIO) and keys[key] == -1}
    mine = Release(name, path, {key: value for key, value in keys.items() if not _UNUSED.search(key)})
    there = _every_key() & mine.keys.keys()
    release = fitting(mine.name, dict.fromkeys(there))[0][0]
    usual = release.over(table, given).release
    made = mine.over(table, given)
    made = replace(made, release={**made.release, IS_OLD: usual[IS_OLD]})
    changed = {key: value for key, value in made.release.items() if usual.get(key) != value and table.row(key)}
    unknown = {key: value for key, value in mine.keys.items() if key not in {*_every_key(), *given}}
    own = [
        f"{key} {show(value)} ({place})"
        for key, value in unknown.items()
        if value not in OFF
        and not any(keys.get(f"{key[: dot.start()]}.enable") is False for dot in re.finditer(r"\.", key))
        and table.row(table.canonical(key)) is None
        and (place := table.place_of(key)) != ""
    ]
    own += [
        f"{key} {show(value)}"
        for key, value in mine.keys.items()
        if "${oc.env" in str(value) and key not in given and table.row(table.canonical(key))
    ]
    of_program = made.derived
    made = replace(made, derived=lambda values: {**changed, **of_program(values)})
    notes = [f"What no key says is as in {mine.origin}, which is most like verl {release.origin}."]
    if changed:
        notes.append(f"There and not in the release: {', '.join(f'{k} {show(v)}' for k, v in changed.items())}.")
    prompts = [each for each in own if _OF_PROMPTS.search(each.partition(" ")[0])]
    notes += [Change(f"Prompts are written by a fork's own keys there: {', '.join(prompts)}.")] if prompts else []
    return made, notes + ([f"{ON_THERE}{', '.join(own)}."] if own else [])


def below_trinity(name: str, rows: Iterable[Row]) -> dict[str, Any]:
    """Return the defaults that Trinity-RFT takes over from verl, whose workers it trains with."""
    keys = releases(name)["v0.5.0"].keys
    names = {row.key for row in rows if row.sum or row.default is RELEASE} - {
        f"{ACTOR}.{name}" for name in _OR_CLIP_RATIO
    }
    own = {key: keys.get(key, _OF_CODE.get(key)) for key in names}
    return {key: value for key, value in own.items() if value is not None and "${" not in str(value)}


def nearest_name(names: tuple[str, ...], given: Mapping[str, Any]) -> str:
    """The configuration in whose releases fewest of the given keys are missing; of several the first."""
    return min(names, key=lambda name: len(fitting(name, given)[1]))


def release_notes(
    fits: list[Release], lacking: list[str], trees: list[Any], pipeline: str, is_asked: bool
) -> Iterator[str]:
    """Yield which release was chosen, and a question where another that fits as well would make another run.
    `trees`: the YAMLs by the releases; `is_asked`: the version was given."""
    chosen, others = fits[0], f", which has all given keys, as have {_span(fits[1:])}" if fits[1:] else ""
    if not is_asked:
        yield f"What no key says is as in verl {chosen.origin}{others}. --version TAG takes another release."
    if lacking:
        yield f"Verl {chosen.origin} has no {', '.join(sorted(lacking))}: keys of several releases stand together."
    usual = {
        name: field.get_default(call_default_factory=True)
        for name, field in PIPELINES[pipeline].config_class().model_fields.items()
    }
    if asked := list(_differences(fits, [_meaning(tree) for tree in trees], usual)):
        yield Change(
            f"Releases with all given keys differ in what no key says: {'; '.join(asked)}. Say which it is by "
            "--version, or by keys of verl's after the file."
        )


def _differences(fits: list[Release], trees: list[dict[str, Any]], usual: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys by which the YAMLs of releases differ, with the values and their releases. `usual`: those of here."""
    for key in dict.fromkeys(key for tree in trees for key in tree):
        by_value = dict[str, list[Release]]()
        for release, tree in zip(fits, trees, strict=True):
            by_value.setdefault(show(tree.get(key, usual.get(key))), []).append(release)
        if len(by_value) > 1:
            yield f"{key} is {' or '.join(f'{value} ({_span(those)})' for value, those in by_value.items())}"


def _meaning(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in leaves(tree) if not _OF_SPEED.fullmatch(key)}


def _span(those: list[Release]) -> str:
    """Example: "v0.4.0 to v0.9.0"."""
    first, last = those[-1].origin, those[0].origin
    return first if first == last else f"{first} to {last}"


# What follows from given keys, whatever the release.

WHOLE_STEPS: Mapping[str, Any] = {"data.drop_last": True}
"""verl's loaders leave the rest of an epoch out, which fills no batch."""
_NEEDED = (f"{MODEL}.path", "model.partial_pretrain", "data.train_files")
_OF_MEGATRON = tuple(f"{section}.{MEGATRON}." for section in (ACTOR, REF, CRITIC))
"""Sections that verl's configuration of FSDP has not: with a key of them no other runs."""
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
_SIZES += ("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel")
_INHERITED = (
    "ulysses_sequence_parallel_size",
    *(f"megatron.{name}" for name in _SIZES),
    *(f"megatron.override_transformer_config.{name}" for name in SPLITS),
)
"""Keys of the reference that are the policy's where they are not given."""


def derived(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return defaults that depend on given values: sizes of the reference, and who trains."""
    defaults = {f"{REF}.{name}": values.get(f"{ACTOR}.{name}") for name in _INHERITED}
    defaults = {key: value for key, value in defaults.items() if value is not None}
    if any(key.startswith(_OF_MEGATRON) and value is not None for key, value in values.items()):
        defaults[f"{ACTOR}.strategy"] = MEGATRON
    return {**defaults, **WHOLE_STEPS, **strategy_of_group(values)}


def given_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes about keys that are empty, or say twice what counts once."""
    for key in _NEEDED:
        if values.get(key) == "":
            yield Change(f"{key} is empty: what it names is set outside of the script. Give it after the file.")
    whole, own = values.get("data.max_response_length"), values.get(f"{ROLLOUT}.response_length")
    if isinstance(own, int) and own != whole and (whole is None or isinstance(whole, int)):
        yield Change(
            f"{ROLLOUT}.response_length is {own}, and data.max_response_length "
            f"{'not given' if whole is None else whole}: engines there sample by the first. Give "
            f"data.max_response_length={own} after the file."
        )
