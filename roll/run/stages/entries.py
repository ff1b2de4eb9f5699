"""The key `stages` of a YAML, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.configs.load.validate import validate
from roll.configs.sections.stages import StageConfig
from roll.errors import ConfigError
from roll.utils.text import show

STAGES = "stages"
_ELSEWHERE: Mapping[str, str] = {
    "defaults": "fragments are for all stages: name them at the top of the YAML",
    "hydra": "it holds for the whole YAML",
    "stages": "a stage has none of its own",
    "exp_name": "a stage is called <exp_name>-<name>; set it at the top of the YAML",
    "output_dir": "a stage writes to <output_dir>/<number>-<name>; set it at the top of the YAML",
    "resume_from_checkpoint": "a stage goes on from what it left by itself; docs/stages.md",
}
"""What does not stand in a stage, and why."""


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
    """The entries of a raw tree. Raises ConfigError with everything that is wrong with them, and with overrides of the
    whole YAML that would change nothing."""
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
        own = {key: item[key] for key in StageConfig.model_fields if key in item}
        changes = {str(key): value for key, value in item.items() if key not in own}
        checked = validate(StageConfig, own)
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
