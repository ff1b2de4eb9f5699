"""Builds the tree of a stage from the YAML and its entry in `stages`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from roll.configs.base import Settings, join
from roll.configs.load.known_keys import Path, path_text, sections
from roll.configs.load.loader import RawTree
from roll.configs.load.references import WHOLE_REFERENCE, lookup, references
from roll.configs.load.validate import SLIP
from roll.configs.presets.table import kind_of_algorithm
from roll.configs.problems import nearest
from roll.configs.sections.run import RunConfig
from roll.run.kind import spellings
from roll.run.stages.entries import STAGES, Entry

ALGORITHM = "algorithm"
PLACES = (
    "logging_dir",
    "profiler_output_dir",
    "checkpoint_config.output_dir",
    "rollout_dump_dir",
    "save_logging_board_dir",
)
"""Where a run writes beside its output_dir: where the whole YAML says so, each stage has a folder of its own there."""


def stage_tree(raw: RawTree, entry: Entry) -> RawTree:
    """The YAML with the changes of one stage. Sections are changed key by key, lists as a whole; null takes a key
    away."""
    tree = copy.deepcopy({key: value for key, value in raw.tree.items() if key != STAGES})
    _change(tree, tree, entry.changes, "")
    kind = kind_of_algorithm(entry.changes.get(ALGORITHM))
    if entry.settings.pipeline is not None:
        tree["pipeline"] = entry.settings.pipeline
    elif kind not in (None, "rl"):
        tree["pipeline"] = kind
    return RawTree(raw.path, tree, raw.of_fragments | set(references(raw.tree)))


def _change(tree: dict[str, Any], node: dict[str, Any], changes: Mapping[str, Any], at: str) -> None:
    for key, value in changes.items():
        where, there = join(at, key), node.get(key)
        if not isinstance(value, Mapping):
            node[key] = copy.deepcopy(value)
            continue
        if isinstance(there, str) and (match := WHOLE_REFERENCE.fullmatch(there.strip())):
            there = copy.deepcopy(lookup(tree, match[1], where))
        node[key] = there if isinstance(there, dict) else {}
        _change(tree, node[key], value, where)


def leave_out(cls: type[RunConfig], others: Iterable[type[Settings]], tree: dict[str, Any], entry: Entry) -> list[str]:
    """Takes out of the resolved tree of a stage what the YAML says for all stages and only others know, and the
    algorithm, if it is one of another kind of run; returns the paths. What no stage knows stays, to be told as an
    unknown key, unless it is misspelt for a key of others, who will tell it; and so does what the stage says itself."""
    known: dict[Path, set[str]] = {}
    for other in others:
        for settings, _, path in sections(other, tree):
            known.setdefault(path, set()).update(spellings(settings))
    gone: list[str] = []
    if kind_of_algorithm(tree.get(ALGORITHM)) not in (None, cls.algorithms) and not entry.says((ALGORITHM,)):
        del tree[ALGORITHM]
        gone.append(ALGORITHM)
    for settings, node, path in list(sections(cls, tree)):
        own = spellings(settings)
        theirs = known.get(path, set())
        for key in [key for key in node if key not in own and not entry.says((*path, key))]:
            if key in theirs:
                gone.append(path_text((*path, key)))
            if key in theirs or (nearest(str(key), theirs, SLIP) and not nearest(str(key), own, SLIP)):
                del node[key]
    return gone


def give_places(tree: dict[str, Any], entry: Entry) -> None:
    """Puts the name and the folders of a stage into its resolved tree."""
    for key in PLACES:
        *parents, last = key.split(".")
        node: Any = tree
        for part in parents:
            node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(last), str) and not entry.says(key.split(".")):
            node[last] = f"{node[last]}/{entry.folder}"
    name, place = tree["exp_name"], tree.get("output_dir")
    if place is None or isinstance(place, str):
        tree["output_dir"] = f"{place or f'./output/{name}'}/{entry.folder}"
    if isinstance(name, str):
        tree["exp_name"] = f"{name}-{entry.name}"
