"""Rewards that verl chooses by the column data_source if no user-defined function is named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.importers.conversions import files
from roll.importers.rows import ChangesRun, SourceLookup, data
from roll.importers.verl.common import MOST_TOKENS, OF_KWARGS, OWN_REWARD, penalty_factor
from roll.utils.files import expanded, path_info

_MOST_BYTES = 2 << 30  # of a file whose column is read


@dataclass(frozen=True)
class Domain:
    """A reward of here, the sources that verl scores so, parts of file names that tell, and how it differs."""

    reward: str
    sources: tuple[str, ...]
    names: tuple[str, ...]
    args: Mapping[str, Any]
    near: str


GRADES_MATHS = "all rows are maths"
"""A default that stands for a program with one grader for all rows, and for no key."""
MATH, DAPO, CODE = "maths", "dapo", "code"
WHOLE = "verl"
"""The domain of all rows, where there is one alone."""
DOMAINS: Mapping[str, Domain] = {
    name: Domain(said["reward"], tuple(said["sources"]), tuple(said["names"]), said.get("args", {}), said["near"])
    for name, said in data("verl/rewards.yaml").items()
}
"""Sources of rewards, by the name of the domain."""


_OTHERS = re.compile(r"aime.*|searchR1_.*|hiyouga/geometry3k")
"""Further sources of verl's own."""


def is_known_source(source: str) -> bool:
    """Whether verl itself has a reward for rows of a source."""
    return any(source in domain.sources for domain in DOMAINS.values()) or _OTHERS.fullmatch(source) is not None


def domain_of(source: str) -> str:
    """The domain of a value of data_source; math for one that verl itself would refuse."""
    for name, domain in DOMAINS.items():
        if source in domain.sources or (name == DAPO and source.startswith("aime")):
            return name
    return MATH


_ALSO_DAPO = ("gsm8k", "numina", "eurus")


def _domains_in(name: str) -> set[str]:
    """Domains that a file's name tells. Example: dapo-math-17k is one set, and none of plain maths."""
    domains = {domain for domain, known in DOMAINS.items() if any(part in name for part in known.names)}
    is_plain = any(part in name for part in _ALSO_DAPO)
    return domains - {MATH} if DAPO in domains and not is_plain else domains


def sources_of(source: SourceLookup) -> dict[str, tuple[str, ...]]:
    """Sources by domain: those that are in the files, where these are on this machine, else all of the domains that the
    names of the files tell. Nothing where a file of the training tells none."""
    paths = [str(path) for key in ("data.train_files", "data.val_files") for path in files(source(key) or [])]
    read = {data_source for path in paths for data_source in _in_file(path, str(source("data.reward_fn_key")))}
    if read:
        return _by_domain(sorted(read))
    names = [f"/{path.lower().rsplit('/data/', 1)[-1]}" for path in paths]
    found = [_domains_in(name) for name in names]
    if not all(found[: len(files(source("data.train_files") or []))]):
        return {}
    return {name: domain.sources for name, domain in DOMAINS.items() if any(name in each for each in found)}


def rewards_by_source(source: SourceLookup) -> tuple[dict[str, dict[str, Any]], str]:
    """The keys of each domain, and how they differ. Domains share the rows by the column only where there are several.

    Example: gsm8k alone is {"verl": {"reward": "math_rule"}}. Where nothing tells the sources, verl's own function
    chooses by them.
    """
    if own := source(OWN_REWARD):
        return {WHOLE: {"reward": "verl_function", "reward_args": dict(own)}}, _OF_CHECKOUT
    if source(GRADES_MATHS):
        return {WHOLE: {"reward": DOMAINS[MATH].reward}}, _GRADED
    domains = sources_of(source)
    if not domains:
        return {WHOLE: _theirs(source)}, _UNTOLD.format(source("data.reward_fn_key"))
    made: dict[str, dict[str, Any]] = {}
    for name, sources in domains.items():
        domain = DOMAINS[name]
        keys: dict[str, Any] = {"reward": domain.reward} | ({"reward_args": dict(domain.args)} if domain.args else {})
        keys |= {"reward_type": "soft"} if name == CODE else {}
        made[WHOLE if len(domains) == 1 else name] = keys | (
            {"tag_included": list(sources)} if len(domains) > 1 else {}
        )
    nears = [DOMAINS[name].near for name in domains]
    by = f"The column {source('data.reward_fn_key')} chooses the domain (data_args.tag)." if len(domains) > 1 else ""
    return made, " ".join(filter(None, (by, *nears, _OWN_CHOICE)))


_OF_CHECKOUT = "The checkout has a choice by the source of its own, which is called there."
_GRADED = (
    "recipe.entropy grades every row as maths, whatever its source: a right answer 1, a wrong one 0, by a grader of "
    "its own, where math-verify compares here. A fork may choose by the source, as verl does."
)
_OWN_CHOICE = (
    "Where verl is installed, verl_function with path: verl.utils.reward_score and name: default_compute_score is its "
    "own choice."
)
_UNTOLD = (
    "Neither rows nor names of files tell {}, so verl's own function chooses the reward of a row by it, which needs "
    "verl where the run is. For answers of maths, rewards.verl.reward: math_rule needs none."
)


def _theirs(source: SourceLookup) -> dict[str, Any]:
    """The reward of a row as verl chooses it, by its data_source."""
    args = {"path": "verl.utils.reward_score", "name": "default_compute_score"}
    column = source("data.reward_fn_key")
    args |= {"data_source_key": column} if column != "data_source" else {}
    return {"reward": "verl_function", "reward_args": args}


def _by_domain(sources: Iterable[str]) -> dict[str, tuple[str, ...]]:
    by_name: dict[str, list[str]] = {}
    for source in sources:
        by_name.setdefault(domain_of(source), []).append(source)
    return {name: tuple(of_domain) for name, of_domain in by_name.items()}


def _in_file(path: str, column: str) -> Iterator[str]:
    place = expanded(path)
    if "$" in path or place.suffix != ".parquet" or not path_info(place).is_file or place.stat().st_size > _MOST_BYTES:
        return
    try:
        import pyarrow.parquet

        yield from map(str, pyarrow.parquet.read_table(place, columns=[column]).column(column).unique().to_pylist())
    except (ImportError, OSError, KeyError, ValueError):  # pyarrow's own errors are ValueErrors
        return


def overlong(source: SourceLookup, buffer: str) -> tuple[dict[str, Any], str]:
    """The penalty on long answers, and what it is in words. It falls by penalty_factor over the buffer, which ends at
    max_resp_len, and goes on falling beyond where answers may be longer; here a part of a reward ends at -1 times its
    weight. Raises ChangesRun where verl stops."""
    longest, length = source.number("data.max_response_length"), source.size(f"{buffer}.len")
    end = source.number(MOST_TOKENS, longest) if buffer == OF_KWARGS else longest
    start, most = end - length, max(end, longest)
    if start < 0:
        raise ChangesRun(f"a buffer of {length} tokens is longer than the {end} that it ends at, where verl stops")
    weight = penalty_factor(source, buffer) * (most - start) / length
    args = {"max_tokens": most, "cache_tokens": most - start}
    said = f"overlong: 0 up to {start} tokens, then down to -{weight:g} at {most}."
    return {"reward": "overlong", "reward_args": args, "weight": weight}, said
