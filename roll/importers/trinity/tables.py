"""Trinity-RFT's tables: most of its keys are verl's under other names, since it trains with verl's workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.configs.load.yaml_file import read_yaml
from roll.importers.convert import YAML_ENDINGS, Entry, Imported, SourceKeys, convert, resolved_leaves
from roll.importers.row_files import rows_of
from roll.importers.rows import CHANGES, Row, Table
from roll.importers.trinity.combined_keys import TRINITY_COMBINED_KEYS, TRINITY_CONDITIONS, algorithm_defaults
from roll.importers.trinity.rows import RL_NAMES, ReadPath, name_of, own_rows, present_key
from roll.importers.trinity.sft import TRINITY_DPO, TRINITY_SFT
from roll.importers.trinity.steps import SAVES
from roll.importers.verl.combined_keys import COMBINED_KEYS
from roll.importers.verl.common import CONDITIONS
from roll.importers.verl.files import beside
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
    return replace(table, rows=rows)


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


# Trinity-RFT's `stages`, of which each is a run: the last is imported, with what all of them say.

_AT = re.compile(r"stages\.(\d+)\.(.+)")
_NAME = "stage_name"
_REPLACED = "the last stage has a section {} of its own"
_ANOTHER = (
    "a stage before the last is a run of its own: import its keys as a YAML without stages, and run both one after the "
    "other by stages (docs/stages.md)"
)


def import_trinity(original: SourceKeys, notes: Sequence[str], source: Path | None = None) -> Imported:
    """One run; of several stages the last."""
    keys = without_none(_with_trainer_config(original, source).keys)
    places = {key: match for key, _ in keys if (match := _AT.fullmatch(key))}
    if not places:
        return convert(keys, trinity_table(keys), notes)
    last = max(places.values(), key=lambda match: int(match[1]))[1]
    own = {match[2].partition(".")[0] for key, match in places.items() if match[1] == last}
    said, unread = list[tuple[str, Any]](), dict[str, Entry]()
    for key, value in keys:
        match, section = places.get(key), key.partition(".")[0]
        if match and match[1] != last:
            unread[key] = Entry(key, value, CHANGES, _ANOTHER)
        elif match and match[2] == _NAME:
            unread[key] = Entry(key, value, "asks for nothing", "exp_name names a run")
        elif match is None and section in own:
            unread[key] = Entry(key, value, "asks for nothing", _REPLACED.format(section))
        else:
            said.append((match[2] if match else key, value))
    made = convert(said, trinity_table(said), notes)
    found = iter(made.entries)
    entries = [unread[key] if key in unread else replace(next(found), key=key) for key, _ in keys]
    return replace(made, entries=tuple(entries))


# A file of verl's keys beside the YAML.

_CONFIG = "trainer.trainer_config"


def _with_trainer_config(original: SourceKeys, source: Path | None) -> SourceKeys:
    """The keys with those of the file of `trainer_config_path`, where it lies beside the YAML, whose own keys count
    before them."""
    path = next((value for key, value in original.keys if key == f"{_CONFIG}_path"), None)
    file = beside(path, source) if isinstance(path, str) and source is not None else None
    if file is None or file.suffix not in YAML_ENDINGS:
        return original
    there = {key for key, _ in original.keys}
    more = [(f"{_CONFIG}.{key}", value) for key, value in resolved_leaves(read_yaml(file))]
    keys = [(key, ReadPath(value) if key == f"{_CONFIG}_path" else value) for key, value in original.keys]
    return replace(original, keys=(*keys, *(item for item in more if item[0] not in there)))
