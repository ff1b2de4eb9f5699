"""Programs that scripts start: verl's own trainers, recipes and forks, and what each changes of verl's table."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from roll.importers.row_files import filled, names_of, rows_of
from roll.importers.rows import Change, Row, Table, data
from roll.importers.verl.checkout import Checkout

_ROOTS = ("verl", "recipe")


@dataclass(frozen=True)
class Fork:
    """A file of `data/forks`. `program`: its module, `keys`: some of its own, of which either tells it. `says`: what
    the YAML is instead, `names`: verl's for its keys, `defaults`: those of its own configuration, `without`: rows that
    do not hold. `scores`: the reward in the fork's program that is the one of here."""

    path: str
    program: str = ""
    keys: tuple[str, ...] = ()
    says: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    without: str = "(?!)"
    scores: str = "(?!)"
    rows: tuple[Row, ...] = ()

    def fits(self, module: str, keys: Collection[str], checkout: Checkout | None) -> bool:
        if self.program and re.fullmatch(self.program, module):
            return True
        return any(key in keys and (checkout is None or checkout.place_of(key) != "") for key in self.keys)

    def over(self, table: Table) -> Table:
        """The table with the fork's own rows, names and defaults."""
        own, known_as = {row.key for row in self.rows}, table.canonical
        rows = (row for row in table.rows if row.key not in own and not re.fullmatch(self.without, row.key))
        return replace(
            table,
            rows=(*rows, *self.rows),
            canonical=lambda key: self.names.get(known_as(key), known_as(key)),
            overruling=table.overruling | self.names.keys(),
            program={**table.program, **self.defaults},
        )


@cache
def _forks() -> tuple[Fork, ...]:
    paths = sorted(path.name for path in (files("roll.importers") / "data" / "forks").iterdir())
    return tuple(_fork(f"forks/{name}", data(f"forks/{name}")) for name in paths)


def _fork(path: str, said: Mapping[str, Any]) -> Fork:
    rows = rows_of(path) if "rows" in said else ()
    known = filled({name: value for name, value in said.items() if name not in ("rows", "names", "keys")})
    keys = tuple(filled(said.get("keys", [])))
    return Fork(path, rows=rows, names=names_of(said.get("names", {})), keys=keys, **known)


def forked(table: Table, module: str, keys: Collection[str], checkout: Checkout | None = None) -> Table:
    """The table with what the program, or keys of a fork that its code reads, change of it."""
    for fork in _forks():
        if fork.fits(module, keys, checkout):
            table = fork.over(table)
    return table


def program_notes(
    words: Sequence[str],
    checkout: Checkout | None = None,
    is_scored: bool = False,
    keys: Mapping[str, Any] = types.MappingProxyType({}),
) -> Iterator[str]:
    """Yield notes about a program other than verl's trainers, as far as its name and its file tell. `is_scored`: a
    file with the function of the reward is named.

    Example: python3 -m recipe.spin.main_spin has pairs of answers, and a loss of its own.
    """
    name = module_of(words)
    if not name or "$" in name or "`" in name:
        return
    known = [fork for fork in _forks() if fork.program and re.fullmatch(fork.program, name)]
    yield from (Change(fork.says.replace("<program>", name).strip()) for fork in known if fork.says)
    is_verls = checkout is not None and checkout.is_verls
    if checkout is not None and is_verls and not is_scored and not any(fork.rows for fork in known):
        manager = str(keys.get("reward_model.reward_manager") or "naive")
        fits = [fork for fork in _forks() if fork.fits(name, keys, checkout)]
        is_theirs = any(re.search(fork.scores, checkout.text_of(manager)) for fork in fits)
        if not known or (checkout.scores_in_program(manager) and not is_theirs):
            yield Change(_SCORES.format(name, checkout.program.name))
    if not known and not is_verls:
        yield Change(
            f"{name} is a program of its own: what it does beside the keys, and its own defaults, are not read."
        )


_SCORES = (
    "{0} is verl's trainer with rewards of its own ({1}), which are not read. Give a file with compute_score("
    "data_source, solution_str, ground_truth, extra_info) that computes them: custom_reward_function.path=FILE"
)


def module_of(words: Sequence[str]) -> str:
    """The module that a command starts: the last one behind -m, else the last file of Python; empty for none.

    Example: torchrun -m verl.trainer.sft_trainer, and python3 /x/verl/trainer/main_ppo.py is verl.trainer.main_ppo.
    """
    modules = [word for before, word in pairwise(words) if before in ("-m", "--module")]
    modules += [word[2:] for word in words if re.fullmatch(r"-m[A-Za-z_][\w.]*\.[\w.]+", word)]
    modules = [name for name in modules if name not in ("torch.distributed.run", "torch.distributed.launch")]
    if modules:
        return modules[-1]
    scripts = [word for word in words if word.endswith(".py") and not word.startswith("-")]
    if not scripts:
        return ""
    parts = scripts[-1].removesuffix(".py").split("/")
    return ".".join(parts[max((i for i, part in enumerate(parts) if part in _ROOTS), default=len(parts) - 1) :])
