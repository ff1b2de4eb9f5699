"""Loads `--config_path --config_name key=value ...` into one plain tree: Hydra composes, overrides are applied,
`${...}` is resolved.

Fragments named in the defaults list (`../config/deepspeed_zero2@_here_`) are found beside the YAML first, then among
those shipped with this package, so that a YAML may lie anywhere.
"""

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roll.configs.base import Settings
from roll.configs.load.known_keys import known_keys
from roll.configs.load.of_roll import fill_of_roll, is_of_roll
from roll.configs.load.yaml_file import fragments_dir, read_yaml
from roll.configs.problems import nearest
from roll.errors import ConfigError
from roll.utils.files import expanded, path_info
from roll.utils.imports import add_folder
from roll.utils.logging import Tone, say
from roll.utils.text import show

_REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w-]*)(?=[.\[}\s])")
_VARIABLE = re.compile(r"\$\{oc\.env:\s*['\"]?([A-Za-z_]\w*)['\"]?\s*\}")  # without a default


@dataclass(frozen=True)
class Composed:
    """A resolved tree. `settings` are the keys to validate; `variables` are helper values used through `${...}`;
    `of_roll` says what is filled in, since the YAML was written for ROLL."""

    settings: dict[str, Any]
    variables: dict[str, Any]
    unused: tuple[str, ...]  # variables that came from a fragment and that no `${...}` names
    of_roll: str = ""


@dataclass(frozen=True)
class RawTree:
    """A YAML with its fragments and overrides, in which `${...}` still stand. `of_fragments`: the top-level keys that a
    fragment brought. `has_hydra`: the YAML has a section for Hydra."""

    path: Path
    tree: dict[str, Any]
    of_fragments: frozenset[str]
    has_hydra: bool = False


def load_tree(directory: Path, name: str, overrides: Sequence[str], cls: type[Settings]) -> Composed:
    """The tree of one YAML with its fragments and overrides.

    Raises ConfigError for a YAML that is not there or does not parse, an override that is none, and `${...}` that
    lead nowhere.
    """
    return resolve_tree(compose_tree(directory, name, overrides), cls)


def compose_tree(directory: Path, name: str, overrides: Sequence[str]) -> RawTree:
    """The first half of `load_tree`, for which nothing has to be known of the keys."""
    name = name.removesuffix(".yaml")
    path = find_yaml(directory, name)
    written = read_yaml(path.resolve())  # for its errors, which have a place
    tree = _compose(directory.resolve(), name, written)
    of_fragments = frozenset(set(tree) - set(written))
    if overrides:
        from roll.configs.load.overrides import apply_overrides

        apply_overrides(tree, overrides)
    return RawTree(path, tree, of_fragments, "hydra" in written)


def without_unset(raw: RawTree) -> tuple[RawTree, frozenset[str]]:
    """The tree with $NAME where it asks for a variable that the environment does not have, and the names of these."""
    unset: set[str] = set()

    def text(match: re.Match[str]) -> str:
        if match[1] in os.environ:
            return match[0]
        unset.add(match[1])
        return f"${match[1]}"

    def filled(node: Any) -> Any:
        if isinstance(node, str):
            return _VARIABLE.sub(text, node)
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        return [filled(item) for item in node] if isinstance(node, list) else node

    return replace(raw, tree=filled(raw.tree)), frozenset(unset)


def resolve_tree(raw: RawTree, cls: type[Settings]) -> Composed:
    """The second half: values in the place of `${...}`, and the keys of `cls` apart from helper values."""
    problems: list[str] = []
    referenced = set(references(raw.tree))
    variables = (referenced | raw.of_fragments) - set(known_keys(cls))
    try:
        resolved = _resolved(OmegaConf.create(raw.tree), "", problems)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{raw.path}: {_error_text(error)}.") from None
    if problems:
        raise ConfigError(*problems)
    resolved.setdefault("exp_name", raw.path.stem)
    settings = {key: value for key, value in resolved.items() if key not in variables}
    filled = dict(fill_of_roll(settings, cls.model_fields)) if is_of_roll(settings, raw.has_hydra) else {}
    return Composed(
        settings=settings,
        variables={key: value for key, value in resolved.items() if key in variables},
        unused=tuple(sorted(variables - referenced)),
        of_roll=", ".join(f"{key}: {value}" for key, value in filled.items()),
    )


def find_yaml(directory: Path, name: str) -> Path:
    """The file of a config name. Raises ConfigError that lists what is there instead."""
    if not path_info(directory).is_directory:
        raise ConfigError(f"--config_path {directory}: there is no such directory.")
    if (status := path_info(directory / f"{name}.yaml")).is_file:
        return status.path
    if status.kind != "absent":
        raise ConfigError(f"--config_name {show(name)}: {status.why}{', not a YAML' if status.exists else ''}.")
    there = yaml_names(directory)
    match = nearest(name, there)
    hint = f"Did you mean {match}?" if match else f"There: {', '.join(there) or 'no YAML at all'}."
    raise ConfigError(f"--config_name {name}: there is no {name}.yaml in {directory}. {hint}")


def yaml_names(directory: Path) -> list[str]:
    """Config names that a directory holds; none of one that may not be read."""
    return sorted(file.stem for file in directory.glob("*.yaml") if path_info(file).is_file)


# --- composition


def _compose(directory: Path, name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    try:
        search = [*((written.get("hydra") or {}).get("searchpath") or []), f"file://{fragments_dir()}"]
        with (
            warnings.catch_warnings(),
            initialize_config_dir(str(directory), job_name="roll", version_base=None),
        ):
            # The YAML's own keys win over its fragments', with or without `_self_`.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            warnings.filterwarnings("ignore", message=".*is not available.*")  # the fragment that is missing is told
            config = compose(
                f"{name}.yaml", overrides=[f"hydra.searchpath=[{','.join(repr(item) for item in search)}]"]
            )
            tree = OmegaConf.to_container(config, resolve=False)
    except Exception as error:  # of what a user can write in `defaults` and `hydra`, Hydra expects a part only
        raise ConfigError(
            f"{directory / name}.yaml: {_error_text(error)} (Fragments are looked up relative to the YAML and to "
            f"{fragments_dir()}.)"
        ) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items() if key not in ("hydra", "defaults")}


def _error_text(error: BaseException) -> str:
    """Return an error of Hydra or OmegaConf on one line."""
    lines = str(error).split("Config search path")[0].split("full_key:")[0]
    return " ".join(lines.split())[:500] or type(error).__name__


# --- references


def references(value: Any) -> Iterable[str]:
    """First parts of all absolute `${...}` in a tree: the top-level keys that are used as variables."""
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from references(child)


def _resolved(node: Any, path: str, problems: list[str]) -> Any:
    """The node with every `${...}` replaced; what leads nowhere is collected, not raised."""
    if isinstance(node, DictConfig):
        resolved: dict[Any, Any] = {}
        for key in node:
            resolved[key] = _item(node, key, f"{path}.{key}" if path else str(key), problems)
        return resolved
    if isinstance(node, ListConfig):
        return [_item(node, i, f"{path}[{i}]", problems) for i in range(len(node))]
    return node


def _item(node: DictConfig | ListConfig, key: Any, path: str, problems: list[str]) -> Any:
    if OmegaConf.is_missing(node, key):
        problems.append(f"{path} is ??? (must be set). Set it in the YAML or as {path}=value.")
        return None
    try:
        value = node[key]
    except Exception as error:  # resolvers such as oc.decode raise what they like
        problems.append(f"{path}: {_error_text(error)}.")
        return None
    return _resolved(value, path, problems)


def yaml_at(path: str) -> tuple[Path, str]:
    """The directory and the name of a YAML, by its path; code beside it can be imported from now on. Raises ConfigError
    that says what is there instead."""
    file = expanded(path if path.endswith(".yaml") else f"{path}.yaml")
    if not (status := path_info(file)).is_file:
        named = path_info(path)
        folder = named.path if named.is_directory else file.parent
        near = yaml_names(folder) if path_info(folder).is_directory else []
        there = f" {'This folder' if folder == Path() else folder} has {', '.join(near)}." if near else ""
        status = named if named.exists else status
        raise ConfigError(f"{status.why}{', not a YAML' if status.exists else ''}. Name a YAML first.{there}")
    add_folder(file.parent.resolve())
    return file.parent.resolve(), file.stem


def locate_yaml(config_path: str, config_name: str, script: str | None = None) -> tuple[Path, str]:
    """The directory and the name of a YAML; code beside it can be imported from now on. A name may have a folder before
    it. A folder is relative to the script before the current one, but `.` is the current one: the first counts that has
    the YAML, or exists. Raises ConfigError that says where was looked, and what is there."""
    folder, _, name = config_name.removesuffix(".yaml").rpartition("/")
    path = expanded(os.path.join(config_path, folder))
    bases = [*([Path(script).resolve().parent] if script else []), Path.cwd()]
    looks = [base / path for base in (bases if path != Path() else reversed(bases))]
    there = list(dict.fromkeys(place.resolve() for place in looks if path_info(place).is_directory))
    if not there:
        looked = " and ".join(dict.fromkeys(map(str, looks)))
        raise ConfigError(f"--config_path {path}: there is no such directory. Looked at {looked}.")
    having = [place for place in there if path_info(place / f"{name}.yaml").is_file]
    if len(having) > 1:
        other, used = having[1], having[0]
        _say(f"--config_path {path}: {name}.yaml is also in {other}; the one in {used} is used.")
    directory = (having or there)[0]
    add_folder(directory)
    if not name:
        raise ConfigError(
            f"--config_name is missing. There: {', '.join(yaml_names(directory)) or 'no YAML'} in {directory}."
        )
    return directory, name


def _say(text: str, tone: Tone = "") -> None:
    with suppress(BrokenPipeError):  # a reader that has seen enough, such as head, does not end the run
        say(text, tone=tone)
