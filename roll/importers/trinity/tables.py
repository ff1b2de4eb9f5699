"""Trinity-RFT's tables: most of its keys are verl's under other names, since it trains with verl's workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.rows import Table, needless, summed
from roll.importers.trinity import agents
from roll.importers.trinity.combined_keys import TRINITY_CONDITIONS, TRINITY_SUMS, algorithm_defaults
from roll.importers.trinity.old_keys import OLD_ROWS, present_key
from roll.importers.trinity.rows import OF_ANY_TASK, OWN_ROWS, RENAMED, RENAMED_SECTIONS, own
from roll.importers.trinity.sft import TRINITY_SFT
from roll.importers.trinity.steps import SAVES
from roll.importers.trinity.trinity_dpo import TRINITY_DPO
from roll.importers.verl.combined_keys import SUMS
from roll.importers.verl.verl_conditions import CONDITIONS
from roll.importers.verl.verl_rows import ROWS

_EMPTY: tuple[Any, ...] = (None, {}, [], "")


def is_trinity(tree: Mapping[str, Any]) -> bool:
    algorithm = tree.get("algorithm")
    return "algorithm_type" in algorithm if isinstance(algorithm, Mapping) else "buffer" in tree and "explorer" in tree


def trinity_table(keys: Iterable[tuple[str, Any]]) -> Table:
    """That of the algorithm which the keys name, with rows for sections that are written without anything in them."""
    given = [(present_key(key), value) for key, value in keys]
    table = _TABLES.get(str(dict(given).get("algorithm.algorithm_type")), TRINITY_RL)
    values = dict(given)
    if table is TRINITY_RL and agents.plays(values):
        table = agents.agents_table(table, values)
    names = [table.canonical(key) for key, value in given if value in _EMPTY]
    sections = [name for name in dict.fromkeys(names) if table.row(name) is None and _is_section(table, name)]
    return replace(table, rows=(*table.rows, *(needless(name, "empty: not given") for name in sections)))


def _is_section(table: Table, name: str) -> bool:
    inside = (*(row.key for row in table.rows), *(f"trinity.{key}" for key in (*RENAMED, *RENAMED_SECTIONS)))
    return any(key.startswith((f"{name}.", f"{name}**")) for key in inside)


def without_none(keys: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The guide writes None for null, which YAML takes for a text."""
    return tuple((key, None if value == "None" else value) for key, value in keys)


def _of_rl(key: str) -> str:
    key = present_key(key)
    if key in RENAMED:
        return RENAMED[key]
    for section, theirs in RENAMED_SECTIONS.items():
        if key.startswith(section + "."):
            return theirs + key[len(section) :]
    return f"trinity.{key}"


TRINITY_RL = Table(
    "trinity",
    "rlvr",
    (
        *OWN_ROWS,
        *map(own, OLD_ROWS),
        summed(SAVES, "saves", default=-1),
        *(row for row in ROWS if row.key != SAVES),
        *OF_ANY_TASK,
    ),
    {**SUMS, **TRINITY_SUMS},
    {**CONDITIONS, **TRINITY_CONDITIONS},
    _of_rl,
    algorithm_defaults,
)
_TABLES: Mapping[str, Table] = {"sft": TRINITY_SFT, "dpo": TRINITY_DPO}
"""By the algorithm's name; those of all others are RL's."""
