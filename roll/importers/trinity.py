"""Trinity-RFT's tables: most of its keys are verl's under other names, since it trains with verl's workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from roll.importers.rows import Table, summed
from roll.importers.trinity_dpo import TRINITY_DPO
from roll.importers.trinity_rows import OF_ANY_TASK, OWN_ROWS, RENAMED, RENAMED_SECTIONS
from roll.importers.trinity_sft import TRINITY_SFT
from roll.importers.trinity_sums import SAVES, TRINITY_CONDITIONS, TRINITY_SUMS, algorithm_defaults
from roll.importers.verl_conditions import CONDITIONS
from roll.importers.verl_rows import ROWS
from roll.importers.verl_sums import SUMS


def is_trinity(tree: Mapping[str, Any]) -> bool:
    algorithm = tree.get("algorithm")
    return "algorithm_type" in algorithm if isinstance(algorithm, Mapping) else "buffer" in tree and "explorer" in tree


def trinity_table(keys: Iterable[tuple[str, Any]]) -> Table:
    """That of the algorithm which the keys name."""
    return _TABLES.get(str(dict(keys).get("algorithm.algorithm_type")), TRINITY_RL)


def _of_rl(key: str) -> str:
    if key in RENAMED:
        return RENAMED[key]
    for section, theirs in RENAMED_SECTIONS.items():
        if key.startswith(section + "."):
            return theirs + key[len(section) :]
    return f"trinity.{key}"


TRINITY_RL = Table(
    "trinity",
    "rlvr",
    (*OWN_ROWS, summed(SAVES, "saves", default=-1), *(row for row in ROWS if row.key != SAVES), *OF_ANY_TASK),
    {**SUMS, **TRINITY_SUMS},
    {**CONDITIONS, **TRINITY_CONDITIONS},
    _of_rl,
    algorithm_defaults,
)
_TABLES: Mapping[str, Table] = {"sft": TRINITY_SFT, "dpo": TRINITY_DPO}
"""By the algorithm's name; those of all others are RL's."""
