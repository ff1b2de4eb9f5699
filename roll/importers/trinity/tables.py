"""Trinity-RFT's tables: most of its keys are verl's under other names, since it trains with verl's workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.sections.run import AT_THE_START, LONGEST_STAGE_NAME
from roll.importers.convert import Entry, Imported, SourceKeys, Tree, convert
from roll.importers.row_files import rows_of
from roll.importers.rows import CHANGES, Outcome, Row, Table
from roll.importers.trinity.combined_keys import TRINITY_COMBINED_KEYS, TRINITY_CONDITIONS, algorithm_defaults
from roll.importers.trinity.old_keys import old_notes
from roll.importers.trinity.rows import RL_NAMES, SFT_NAMES, name_of, own_rows, present_key
from roll.importers.trinity.sft import TRINITY_DPO, TRINITY_SFT
from roll.importers.trinity.steps import SAVES
from roll.importers.verl.combined_keys import COMBINED_KEYS
from roll.importers.verl.common import ACTOR, CONDITIONS, ROLLOUT
from roll.importers.verl.releases import PPO, below_trinity

_EMPTY: tuple[Any, ...] = (None, {}, [], "")


def is_trinity(tree: Mapping[str, Any]) -> bool:
    algorithm = tree.get("algorithm")
    return "algorithm_type" in algorithm if isinstance(algorithm, Mapping) else "buffer" in tree and "explorer" in tree


def trinity_table(keys: Iterable[tuple[str, Any]]) -> Table:
    """Return the table of the algorithm that the keys name, with rows for sections that are empty."""
    key_values = [(present_key(key), value) for key, value in keys]
    table = _TABLES.get(str(dict(key_values).get("algorithm.algorithm_type")), TRINITY_RL)
    names = [table.canonical(key) for key, value in key_values if value in _EMPTY]
    sections = [name for name in dict.fromkeys(names) if table.row(name) is None and _is_section(table, name)]
    rows = (*table.rows, *(Row(name, note="empty: not given", outcome="asks for nothing") for name in sections))
    return replace(table, rows=rows, newer_names=_names_there(table))


def _names_there(table: Table) -> dict[str, str]:
    """Return what a Trinity YAML calls the keys of the rows; of several names the first."""
    known = SFT_NAMES if table.pipeline in ("sft", "dpo") else _OF_RL
    sections = [(key, theirs) for key, theirs in known.items() if key.endswith(".") and theirs]
    written = {theirs: key for key, theirs in reversed(list(known.items()))}
    names = dict[str, str]()
    for row in table.rows:
        inside = (key + row.key[len(theirs) :] for key, theirs in sections if row.key.startswith(theirs))
        names[row.key] = written.get(row.key) or next(inside, row.key.removeprefix("trinity."))
    return names


_OF_RL: Mapping[str, str] = {
    **RL_NAMES,
    "explorer.rollout_model.engine_type": f"{ROLLOUT}.name",
    "algorithm.kl_loss_fn": f"{ACTOR}.kl_loss_type",
}


def _is_section(table: Table, name: str) -> bool:
    inside = (*(row.key for row in table.rows), *(f"trinity.{key}" for key in RL_NAMES))
    return any(key.startswith((f"{name}.", f"{name}**")) for key in inside)


def without_none(keys: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The guide writes None for null, which YAML takes for a text."""
    return tuple((key, None if value == "None" else value) for key, value in keys)


TRINITY_RL = Table(
    "trinity",
    "rlvr",
    (
        *own_rows("shared", "rl"),
        *(row for row in rows_of("verl/rl.yaml") if row.key != SAVES),
        *rows_of("trinity/rl_of_verl.yaml"),
    ),
    {**COMBINED_KEYS, **TRINITY_COMBINED_KEYS},
    {**CONDITIONS, **TRINITY_CONDITIONS},
    lambda key: name_of(key, RL_NAMES),
    algorithm_defaults,
    release=below_trinity(PPO, rows_of("verl/rl.yaml")),
)
_TABLES: Mapping[str, Table] = {"sft": TRINITY_SFT, "dpo": TRINITY_DPO}
"""Tables by the algorithm's name; all other algorithms have that of RL."""


# Trinity-RFT's `stages`: each is imported by the table of its own algorithm; what all have in common stands once.

_AT = re.compile(r"stages\.(\d+)\.(.+)")
_NAME = "stage_name"
_ONE_PROCESS = "a stage samples and trains in one process"
_UNUSED: Outcome = "asks for nothing"
_WEIGHT: tuple[Outcome, ...] = (CHANGES, "not available", "approximated", "mapped", _UNUSED)
"""Outcomes by weight: of a key that several stages read, the first of these counts."""

Keys = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class _Stage:
    number: int
    name: str
    stage_keys: frozenset[str]  # its keys, as they are called outside of it
    imported: Imported


def import_trinity(original: SourceKeys, notes: Sequence[str]) -> Imported:
    """One run, or several one after the other."""
    original = replace(original, keys=without_none(original.keys))
    notes = [*notes, *old_notes(original.keys)]
    numbers = sorted({int(match[1]) for key, _ in original.keys if (match := _AT.fullmatch(key))})
    if not numbers:
        return convert(original.keys, trinity_table(original.keys), notes)
    base = [(key, value) for key, value in original.keys if not _AT.fullmatch(key)]
    stages = [_stage(number, base, original.keys) for number in numbers]
    shared = _shared([stage.imported.tree for stage in stages])
    listed = [
        {"name": stage.name, "pipeline": stage.imported.pipeline, **_beside(stage.imported.tree, shared)}
        for stage in stages
    ]
    entries = [_entry(key, value, stages) for key, value in original.keys]
    last = stages[-1].imported
    opened = tuple(dict.fromkeys(key for stage in stages for key in stage.imported.unresolved))
    tree = shared | {"stages": listed}
    return Imported(
        "trinity", last.pipeline, tree, tuple(entries), _defaults(stages), (*notes, *_stage_notes(stages)), opened
    )


def _stage(number: int, base: Keys, keys: Keys) -> _Stage:
    """A section that a stage has replaces that of all stages as a whole."""
    mine = [(match[2], value) for key, value in keys if (match := _AT.fullmatch(key)) and int(match[1]) == number]
    name = next((str(value) for key, value in mine if key == _NAME and value), f"stage-{number + 1}")
    stage_keys = [(key, value) for key, value in mine if key != _NAME and value is not None]
    replaced = {key.partition(".")[0] for key, _ in stage_keys}
    all_keys = [item for item in base if item[0].partition(".")[0] not in replaced] + stage_keys
    table = trinity_table(all_keys)
    imported = convert(all_keys, table)
    if imported.tree.get("mode") is not None:
        all_keys = [item for item in all_keys if item[0] != "mode"]
        mode_entry = next(entry for entry in imported.entries if entry.key == "mode")
        imported = convert(all_keys, table)
        lost = Entry("mode", mode_entry.value, "not available", _ONE_PROCESS)
        imported = replace(imported, entries=(*imported.entries, lost))
    if imported.tree.get("save_steps", 1) < 1:  # a stage hands over its last checkpoint
        del imported.tree["save_steps"]
    imported.tree.pop("resume_from_checkpoint", None)  # stages go on by themselves
    return _Stage(number, _plain(name), frozenset(key for key, _ in mine), imported)


def _plain(name: str) -> str:
    """A name that can be a folder's."""
    plain_name = re.sub(r"[^A-Za-z0-9_-]", "-", name)[: LONGEST_STAGE_NAME - len("stage-")]
    return plain_name if plain_name[:1].isalpha() and plain_name != AT_THE_START else f"stage-{plain_name}"


def _shared(configs: Sequence[Mapping[str, Any]]) -> Tree:
    """Return the keys that all configurations share, section by section."""
    shared: Tree = {}
    for key, value in configs[0].items():
        values = [tree[key] for tree in configs if key in tree]
        if len(values) < len(configs):
            continue
        if all(isinstance(each, dict) for each in values):
            inner = _shared(values)
            shared |= {key: inner} if inner else {}
        elif all(each == value for each in values):
            shared[key] = value
    return shared


def _beside(tree: Mapping[str, Any], shared: Mapping[str, Any]) -> Tree:
    """Return the keys of a tree that are not shared by all."""
    rest: Tree = {}
    for key, value in tree.items():
        if isinstance(value, dict) and isinstance(there := shared.get(key), dict):
            inner = _beside(value, there)
            rest |= {key: inner} if inner else {}
        elif key not in shared:
            rest[key] = value
    return rest


def _entry(key: str, value: Any, stages: Sequence[_Stage]) -> Entry:
    """Report entry of a key. For a key of one stage it says what became of it; for a key of all stages, what each stage
    did with it."""
    if match := _AT.fullmatch(key):
        stage = next(stage for stage in stages if stage.number == int(match[1]))
        if match[2] == _NAME:
            return Entry(key, value, "mapped", f"stages.{stage.name}, whose exp_name has it at its end")
        entries = [entry for entry in stage.imported.entries if entry.key == match[2]]
        return replace(entries[0], key=key) if entries else Entry(key, value, _UNUSED, "empty: not given")
    entries = [
        (stage.name, entry)
        for stage in stages
        if key.partition(".")[0] not in {other.partition(".")[0] for other in stage.stage_keys}
        for entry in stage.imported.entries
        if entry.key == key
    ]
    if not entries:
        return Entry(key, value, _UNUSED, f"every stage has a section {key.partition('.')[0]} of its own")
    outcome = min((entry for _, entry in entries), key=lambda entry: _WEIGHT.index(entry.outcome)).outcome
    return Entry(
        key, value, outcome, _notes([each for each in entries if each[1].outcome != _UNUSED or outcome == _UNUSED])
    )


def _notes(entries: Sequence[tuple[str, Entry]]) -> str:
    by_note: dict[str, list[str]] = {}
    for name, entry in entries:
        by_note.setdefault(entry.note, []).append(name)
    if len(by_note) == 1:
        return entries[0][1].note
    return " ".join(f"[{', '.join(names)}] {note}" for note, names in by_note.items())


def _stage_notes(stages: Iterable[_Stage]) -> Iterator[str]:
    """Yield the notes of each stage, with its name."""
    for stage in stages:
        for note in stage.imported.notes:
            yield type(note)(f"[{stage.name}] {note}")


def _defaults(stages: Iterable[_Stage]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for stage in stages:
        for target, why in stage.imported.defaults.items():
            if reasons.setdefault(target, why) != why:
                reasons[f"stages.{stage.name}.{target}"] = why
    return reasons
