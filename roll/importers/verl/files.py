"""Files of one's own beside a command of verl: the one of --config-name, and those that its defaults name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.configs.load.yaml_file import read_yaml
from roll.importers.rows import Change
from roll.importers.script import Command
from roll.importers.verl.common import ENGINE_GROUP
from roll.utils.files import path_info

VERLS = re.compile(
    r"_?(generated_)?(ppo|sft|dapo|rm|dpo)(_\w+)?_trainer(_engine)?|(fully_async|one_step_off)_ppo(_megatron)?_trainer|ppo_trainer|sft_trainer"
)
"""Names of verl's own configurations, whose defaults the importer knows."""
_GROUPS = ("actor", "algorithm", "critic", "data", "distillation", "engine", "model", "npu_profile", "optim")
_GROUPS += ("profiler", "ref", "reward", "reward_manager", "reward_model", "rollout", "teacher")
_DEEPEST, _HIGHEST = 8, 8


@dataclass
class Composed:
    """`tree`: what files of one's own say; `bases`: verl's own under them."""

    tree: dict[str, Any] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def of_command(command: Command, script: Path) -> Composed:
    """Compose the configuration that --config-name (or -cn) of a command names."""
    composed = Composed()
    name = (command.flag("config-name") or command.short_flag("-cn") or "").strip().removesuffix(".yaml")
    if not name:
        return composed
    path = _beside(f"{name}.yaml", command.flag("config-path") or command.short_flag("-cp") or "", script)
    if VERLS.fullmatch(name) and path is None:
        composed.bases.append(name)
    elif path is None:
        hint = "import that file, with the keys of the command behind it"
        composed.notes.append(
            Change(f"--config-name {name} has keys of its own, and is not beside the script: {hint}.")
        )
    else:
        composed.notes.append(f"--config-name {name}: read from {path.name}.")
        _compose(path, composed, 0)
    return composed


def of_file(path: Path, tree: Mapping[str, Any]) -> Composed | None:
    """Compose a YAML and its defaults; None for a file that does not build on verl's."""
    defaults = tree.get("defaults")
    if not isinstance(defaults, list) or not any(isinstance(name, str) and VERLS.fullmatch(name) for name in defaults):
        return None
    composed = Composed()
    _add(path, dict(tree), composed, 0)
    return composed


def beside(written: str, script: Path | None) -> Path | None:
    """A file as a script writes it; without a script, from this folder."""
    folder, _, name = written.strip().rpartition("/")
    return _beside(name, folder, script or Path("script")) if name else None


def _beside(name: str, folder: str, script: Path) -> Path | None:
    """The file by its folder as the script writes it, whose beginning only a run of the script would tell."""
    known = re.split(r"[}`)]", folder)[-1]
    parts = [part for part in known.split("/") if part not in ("", ".", "..")][-_DEEPEST:]
    here = script.resolve().parent
    folders = [Path(folder)] if folder.startswith("/") else []
    for above in [here, *here.parents][:_HIGHEST]:
        folders += [above.joinpath(*parts[start:]) for start in range(len(parts))]
    folders += [here, here / "config"]
    return next((path for path in (folder / name for folder in folders) if path_info(path).is_file), None)


def _compose(path: Path, composed: Composed, depth: int) -> None:
    if depth > _DEEPEST:
        composed.notes.append(
            Change(f"{path.name}: defaults within defaults, more than {_DEEPEST} deep, are not read.")
        )
        return
    _add(path, read_yaml(path), composed, depth)


def _add(path: Path, tree: dict[str, Any], composed: Composed, depth: int) -> None:
    """Adds a file to what is there, after the files of its defaults or, of `_self_`, among them."""
    defaults = tree.get("defaults")
    names = list(_named(defaults if isinstance(defaults, list) else []))
    if ("_self_", "") not in names:
        names.append(("_self_", ""))
    for name, section in names:
        if name == "_self_":
            _merge(composed.tree, tree)
            continue
        file = path.parent / f"{name}.yaml"
        if path_info(file).is_file and file.resolve() != path.resolve():
            inner = Composed()
            _compose(file, inner, depth + 1)
            composed.bases += inner.bases
            composed.notes += [*inner.notes, f"{name}.yaml of its defaults is read."]
            for part in reversed(section.split(".") if section else []):
                inner.tree = {part: inner.tree}
            _merge(composed.tree, inner.tree)
        elif VERLS.fullmatch(name):
            composed.bases.append(name)
        elif name.startswith(f"{ENGINE_GROUP}/"):
            composed.tree[ENGINE_GROUP] = name.partition("/")[2]
        elif name.partition("/")[0] not in _GROUPS:
            composed.notes.append(Change(f"{name} of the defaults of {path.name} is not beside it, and is not read."))


def _named(defaults: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Files with the section in which they stand. Example: `actor@actor_rollout_ref.actor: mine` is `actor/mine`."""
    for entry in defaults:
        if isinstance(entry, str):
            name, _, section = entry.partition("@")
            yield name.removeprefix("/").removesuffix(".yaml"), section.removeprefix("_global_")
        elif isinstance(entry, Mapping):
            for key, option in entry.items():
                if not isinstance(option, str):
                    continue
                group, _, section = str(key).removeprefix("override ").strip().removeprefix("/").partition("@")
                yield f"{group}/{option.removesuffix('.yaml')}", section or group.replace("/", ".")


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        held = below.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            _merge(held, value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value
