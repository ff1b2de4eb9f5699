"""The key `stages` of a YAML, entry by entry."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.base import Settings, join
from roll.configs.load.known_keys import Path, path_text, sections, spellings
from roll.configs.load.loader import RawTree, references
from roll.configs.load.overrides import WHOLE_REFERENCE, lookup
from roll.configs.load.validate import validate
from roll.configs.problems import SLIP, nearest
from roll.configs.sections.run import STAGES, RunConfig, StageConfig
from roll.configs.tables.presets import kind_of_algorithm
from roll.errors import ConfigError
from roll.utils.text import show

_ELSEWHERE: Mapping[str, str] = {
    "defaults": "fragments are for all stages: name them at the top of the YAML",
    "hydra": "it holds for the whole YAML",
    "stages": "a stage has none of its own",
    "exp_name": "a stage is named <exp_name>-<name>; set it at the top of the YAML",
    "output_dir": "a stage writes to <output_dir>/<number>-<name>; set it at the top of the YAML",
    "resume_from_checkpoint": "stages resume by themselves; docs/stages.md",
}
"""Keys that must not be in a stage, and why."""


@dataclass(frozen=True)
class Entry:
    """`changes`: the keys that hold in this stage alone; the rest is the YAML's."""

    number: int  # from 1
    settings: StageConfig
    changes: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def folder(self) -> str:
        return f"{self.number}-{self.name}"

    def says(self, path: Sequence[str | int]) -> bool:
        """True if this stage itself sets a key, or takes a section around it away, or the list that it is in. A section
        that is named by `${...}` says nothing."""
        node: Any = self.changes
        for part in path:
            if not isinstance(node, Mapping):
                return not isinstance(node, str)
            if part not in node:
                return False
            node = node[part]
        return True


def read_entries(tree: Mapping[str, Any], overrides: Sequence[str]) -> list[Entry]:
    """The entries of a raw tree. Raises ConfigError with everything that is wrong with them."""
    written = tree[STAGES]
    if not isinstance(written, list) or not written:
        raise ConfigError(
            f"{STAGES}: {show(written)} must be a list of stages, each with a name and the keys that it changes."
        )
    entries: list[Entry] = []
    problems: list[str] = []
    for i, item in enumerate(written):
        at = f"{STAGES}[{i}]"
        if not isinstance(item, Mapping):
            problems.append(f"{at}: {show(item)} must be a mapping with a name and the keys that the stage changes.")
            continue
        stage_keys = {key: item[key] for key in StageConfig.model_fields if key in item}
        changes = {str(key): value for key, value in item.items() if key not in stage_keys}
        checked = validate(StageConfig, stage_keys)
        problems += [f"{at}.{problem.text}" for problem in checked.problems]
        problems += [f"{at}.{key}: {why}." for key, why in _ELSEWHERE.items() if key in changes]
        if checked.config is not None and not checked.problems:
            entries.append(Entry(i + 1, checked.config, changes))
    problems += [*_same_names(entries), *_without_effect(entries, overrides), *_in_parts(tree, written)]
    if problems:
        raise ConfigError(*problems)
    return entries


def _in_parts(tree: Mapping[str, Any], written: Sequence[Any]) -> Iterator[str]:
    entries = {f"{STAGES}[{i}].": item for i, item in enumerate(written) if isinstance(item, Mapping)}
    for at, keys in {"": tree, **entries}.items():
        if (mode := keys.get("mode")) not in (None, "both"):
            yield f"{at}mode: {show(mode)}: a stage samples and trains in one process. Take it out."


def _same_names(entries: Sequence[Entry]) -> Iterator[str]:
    first: dict[str, Entry] = {}
    for entry in entries:
        if (other := first.setdefault(entry.name, entry)) is not entry:
            yield (
                f"{STAGES}[{entry.number - 1}].name: {entry.name} is the name of {STAGES}[{other.number - 1}] as well. "
                "Give it one of its own."
            )


def _without_effect(entries: Sequence[Entry], overrides: Sequence[str]) -> Iterator[str]:
    """Warns of overrides for the whole YAML that change nothing, since every stage has its own value."""
    for text in overrides:
        key, deletes = text.partition("=")[0].lstrip("+~").strip(), text.startswith("~")
        if entries and key.split(".")[0] != STAGES and all(entry.says(key.split(".")) for entry in entries):
            write = f"~{STAGES}.{entries[0].name}.{key}" if deletes else f"{STAGES}.{entries[0].name}.{key}=value"
            yield (
                f"override {show(text)} changes nothing: every stage has a {key} of its own. Write "
                f"{write} for one of them."
            )


# Builds the tree of a stage from the YAML and its entry in `stages`.

ALGORITHM = "algorithm"
PLACES = (
    "logging_dir",
    "profiler_output_dir",
    "checkpoint_config.output_dir",
    "rollout_dump_dir",
    "save_logging_board_dir",
)
"""Keys of folders beside the output_dir: where the whole YAML says so, each stage has its own there."""


def stage_tree(raw: RawTree, entry: Entry) -> RawTree:
    """The YAML with the changes of a stage: sections key by key, lists as a whole; null takes a key away."""
    tree = copy.deepcopy({key: value for key, value in raw.tree.items() if key != STAGES})
    _change(tree, tree, entry.changes, "")
    kind = kind_of_algorithm(entry.changes.get(ALGORITHM))
    if entry.settings.pipeline is not None:
        tree["pipeline"] = entry.settings.pipeline
    elif kind not in (None, "rl"):
        tree["pipeline"] = kind
    return replace(raw, tree=tree, of_fragments=raw.of_fragments | set(references(raw.tree)))


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
        spelled = spellings(settings)
        theirs = known.get(path, set())
        for key in [key for key in node if key not in spelled and not entry.says((*path, key))]:
            if key in theirs:
                gone.append(path_text((*path, key)))
            if key in theirs or (nearest(str(key), theirs, SLIP) and not nearest(str(key), spelled, SLIP)):
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
