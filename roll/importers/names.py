"""Keys of other systems by the names of here: what is said of an unknown key in a YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from roll.importers.rows import data
from roll.importers.trinity.tables import TRINITY_RL
from roll.importers.verl.tables import VERL_RL

NAMES: Mapping[str, tuple[str, ...]] = {
    name: (ours,) if isinstance(ours, str) else tuple(ours) for name, ours in data("names.yaml").items()
}


def foreign_names(path: str, value: object, has: Callable[[str], bool]) -> dict[str, str]:
    """Return the keys of here for an unknown key and for what is below it, if other systems have them. `has`: whether a
    key can be in this YAML.

    Example: {"data.train_batch_size": "rollout_batch_size"} for data: {train_batch_size: 32}.
    """
    found = {name: _ours(name, has) for name in _leaves(path, value)}
    same = {name: last for name in found if name != path and has(last := name.rpartition(".")[2])}
    return {name: ours for name, said in found.items() if (ours := said or same.get(name)) is not None}


def _leaves(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path


def _ours(path: str, has: Callable[[str], bool]) -> str | None:
    section, _, name = path.rpartition(".")
    rows = [row for table in (VERL_RL, TRINITY_RL) if section and (row := table.row(path)) is not None]
    names = [
        *(target for row in rows for target in row.targets),
        *NAMES.get(path, NAMES.get(name, _alone().get(name, ()))),
    ]
    # The same key of another role.
    beside = [f"{section}.{'.'.join(each.split('.')[-n:])}" for each in names if section for n in (1, 2)]
    return next(filter(has, [*beside, *names]), None)


@cache
def _alone() -> dict[str, tuple[str, ...]]:
    """Names that mean one key, wherever verl's and Trinity's tables have them."""
    targets: dict[str, set[Any]] = {}
    for row in (*VERL_RL.rows, *TRINITY_RL.rows):
        targets.setdefault(row.key.rpartition(".")[2], set()).add(row.targets)
    return {name: found.pop() for name, found in targets.items() if len(found) == 1}
