"""Files of one's own beside a command of verl: the one of --config-name, and those that its defaults name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.configs.load.yaml_file import read_yaml
from roll.importers.rows import Change
from roll.importers.script import Command
from roll.importers.verl.checkout import Checkout, checkout_of
from roll.importers.verl.common import ENGINE_GROUP
from roll.importers.verl.programs import module_of
from roll.utils.files import path_info

VERLS = re.compile(
    r"_?(generated_)?(ppo|sft|dapo|rm|dpo)(_\w+)?_trainer(_engine)?|(fully_async|one_step_off)_ppo(_megatron)?_trainer|ppo_trainer|sft_trainer"
)
"""Names of verl's own configurations, whose defaults the importer knows."""
_GROUPS = ("actor", "algorithm", "critic", "data", "distillation", "engine", "model", "npu_profile", "optim")
_GROUPS += ("profiler", "ref", "reward", "reward_manager", "reward_model", "rollout", "teacher")
_DEEPEST, _HIGHEST, _MOST_BYTES = 8, 8, 1 << 20
_CHOICE = re.compile(r"\$\{(\w+)\}")


@dataclass
class Composed:
    """`tree`: what files of one's own say; `bases`: verl's own under them."""

    tree: dict[str, Any] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)
    """Files that a word of the command or a file above chooses for a group."""
    read: list[str] = field(default_factory=list)
    reads_verls: bool = True
    """False where verl's own files, which lie beside, are defaults and not what is given."""

    @property
    def remarks(self) -> list[str]:
        return [
            *self.notes,
            *([f"Of its defaults are read: {', '.join(dict.fromkeys(self.read))}."] if self.read else []),
        ]


def of_program(checkout: Checkout, command: Command, script: Path) -> tuple[Path, Composed] | None:
    """Compose the configuration that the program itself names. The program is read, and never run."""
    named = _of_hydra(checkout.program)
    name = _config_name(command) or named.get("config_name", "").removesuffix(".yaml")
    path = checkout.program.parent / named.get("config_path", ".") / f"{name}.yaml"
    if _config_name(command):
        beside = _beside(path.name, _config_path(command) or str(path.parent), script)
        path = beside or _of_checkout(command, script) or path
    if not (name and path.resolve().is_relative_to(checkout.root) and path_info(path).is_file):
        return None
    words = (word.lstrip("+").partition("=") for word in command.overrides)
    composed = Composed(choices={key: value for key, _, value in words if "." not in key})
    _compose(path.resolve(), composed, 0)
    return path, composed


def _of_hydra(program: Path) -> dict[str, str]:
    """The words of @hydra.main in a program."""
    try:
        tree = ast.parse(program.read_bytes()[:_MOST_BYTES])
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls = [call for call in calls if ast.unparse(call.func) == "hydra.main"]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    words = [(each.arg, each.value) for call in calls for each in call.keywords]
    return {str(name): str(node.value) for name, node in words if isinstance(node, ast.Constant) and node.value}


def _config_name(command: Command) -> str:
    return (command.flag("config-name", "-cn") or "").strip().removesuffix(".yaml")


def _config_path(command: Command) -> str:
    return command.flag("config-path", "-cp") or ""


def _of_checkout(command: Command, script: Path) -> Path | None:
    """Return the file of --config-name beside the program in its checkout."""
    file = f"{_config_name(command)}.yaml"
    checkout = checkout_of(module_of(command.program), script)
    if checkout is None:
        return None
    folder = _config_path(command) or _of_hydra(checkout.program).get("config_path", ".")
    path = checkout.program.parent / folder / file
    return path if path_info(path).is_file else None


def of_command(command: Command, script: Path) -> Composed:
    """Compose the configuration that --config-name (or -cn) of a command names."""
    composed = Composed()
    name = _config_name(command)
    if not name:
        return composed
    path = _beside(f"{name}.yaml", _config_path(command), script)
    if path is None and VERLS.fullmatch(name):
        composed.bases.append(name)
    elif path is None and (path := _of_checkout(command, script)):
        composed.notes.append(f"--config-name {name}: read from {path.name}.")
        composed.reads_verls = False
        _compose(path, composed, 1)
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
    defaults = tree.pop("defaults", None) if depth else tree.get("defaults")
    names = list(_named(defaults if isinstance(defaults, list) else [], composed.choices))
    if ("_self_", "") not in names:
        names.append(("_self_", ""))
    for name, section in names:
        if name == "_self_":
            _merge(composed.tree, tree)
            continue
        file = path.parent / f"{name}.yaml"
        is_default = VERLS.fullmatch(name) and not composed.reads_verls
        if not is_default and path_info(file).is_file and file.resolve() != path.resolve():
            inner = Composed(choices=composed.choices, reads_verls=composed.reads_verls)
            _compose(file, inner, depth + 1)
            section = "" if _is_global(file) else section
            composed.bases += inner.bases
            composed.notes += inner.notes
            composed.read += [*inner.read, f"{name}.yaml"]
            for part in reversed(section.split(".") if section else []):
                inner.tree = {part: inner.tree}
            _merge(composed.tree, inner.tree)
        elif VERLS.fullmatch(name):
            composed.bases.append(name)
        elif name.partition("/")[0] not in (*_GROUPS, ENGINE_GROUP):
            composed.notes.append(Change(f"{name} of the defaults of {path.name} is not beside it, and is not read."))
    if composed.bases and ENGINE_GROUP in composed.choices:
        composed.tree.setdefault(ENGINE_GROUP, composed.choices[ENGINE_GROUP])


def _is_global(file: Path) -> bool:
    """Whether the first line of a file puts its keys at the top."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.readline(_MOST_BYTES).split() == ["#", "@package", "_global_"]


def _named(defaults: Sequence[Any], choices: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Files with the section in which they stand. Example: `actor@actor_rollout_ref.actor: mine` is `actor/mine`."""
    sections = [entry for entry in defaults if isinstance(entry, Mapping)]
    own = [(str(key), option) for entry in sections for key, option in entry.items() if isinstance(option, str)]
    for key, option in sorted(own, key=lambda item: not item[0].startswith("override ")):
        choices.setdefault(key.removeprefix("override ").strip().removeprefix("/"), option)
    for entry in defaults:
        if isinstance(entry, str):
            name, _, section = entry.partition("@")
            yield name.removeprefix("/").removesuffix(".yaml"), section.removeprefix("_global_")
        elif isinstance(entry, Mapping):
            for key, option in entry.items():
                name = str(key).removeprefix("/")
                if not isinstance(option, str) or name.startswith("override "):
                    continue
                group, _, section = name.partition("@")
                option = _CHOICE.sub(lambda it: choices.get(it[1], it[0]), choices.get(name, option))
                yield f"{group}/{option.removesuffix('.yaml')}", section or group.replace("/", ".")


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        held = below.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            _merge(held, value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value
