"""Loads `--config_path --config_name key=value ...` into one plain tree: Hydra composes, overrides are applied,
`${...}` is resolved.

Fragments named in the defaults list (`../config/deepspeed_zero2@_here_`) are found beside the YAML first, then among
those shipped with this package, so that a YAML may lie anywhere.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from roll.configs.load.overrides import apply_overrides, references
from roll.configs.load.yaml_file import fragments_dir, read_yaml
from roll.configs.problems import nearest
from roll.errors import ConfigError
from roll.utils.files import expanded, path_info
from roll.utils.imports import add_folder
from roll.utils.logging import Tone, say
from roll.utils.text import show

_VARIABLE = re.compile(r"\$\{oc\.env:\s*['\"]?([A-Za-z_]\w*)['\"]?\s*\}")  # without a default
_ENDLESS = "nested too deeply, or a ${...} refers to itself"


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
    name = _stem(directory, name)
    path = find_yaml(directory, name)
    written = read_yaml(path.resolve())  # for its errors, which have a place
    tree = _compose(directory.resolve(), name, written)
    of_fragments = frozenset(set(tree) - set(written))
    try:
        apply_overrides(tree, overrides)
    except RecursionError:
        raise ConfigError(f"{path}: {_ENDLESS}.") from None
    return RawTree(path, tree, of_fragments, "hydra" in written)


def _stem(directory: Path, name: str) -> str:
    """The name of a config without the ending that a user may write, unless a file has it before its own."""
    if path_info(directory / f"{name}.yaml").is_file:
        return name
    return name.removesuffix(".yaml").removesuffix(".yml")


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
    except RecursionError:
        raise ConfigError(f"{raw.path}: {_ENDLESS}.") from None
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
    folder, status = path_info(directory), path_info(directory / f"{name}.yaml")
    if not folder.is_directory:
        why = "there is no such directory" if folder.kind in ("absent", "file") else folder.why
        raise ConfigError(f"--config_path {directory}: {why}.")
    if status.is_file:
        return status.path
    if status.kind != "absent":
        raise ConfigError(f"--config_name {show(name)}: {status.why}{', not a YAML' if status.exists else ''}.")
    if path_info(directory / f"{name}.yml").is_file:
        raise ConfigError(f"{directory / name}.yml: a configuration ends in .yaml, as Hydra has it. Rename the file.")
    there = yaml_names(directory)
    match = nearest(name, there)
    hint = f"Did you mean {match}?" if match else f"There: {', '.join(there) or 'no YAML at all'}."
    raise ConfigError(f"--config_name {name}: there is no {name}.yaml in {directory}. {hint}")


def yaml_names(directory: Path) -> list[str]:
    """Config names that a directory holds; none of one that may not be read."""
    return sorted(file.stem for file in directory.glob("*.yaml") if path_info(file).is_file)


# --- composition


def _compose(directory: Path, name: str, written: Mapping[str, Any]) -> dict[str, Any]:
    path = directory / f"{name}.yaml"
    search = [*_search_path(path, written), f"file://{fragments_dir()}"]
    GlobalHydra.instance().clear()
    try:
        with (
            warnings.catch_warnings(),
            initialize_config_dir(str(directory), job_name="roll", version_base=None),
        ):
            # The YAML's own keys win over its fragments', with or without `_self_`.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            warnings.filterwarnings("ignore", message=".*is not available.*")  # the fragment that is missing is told
            for file in _fragments(written, [str(directory), *search]):
                read_yaml(file, may_be_empty=True)  # for its errors, which Hydra lays on the YAML, or passes over
            config = compose(
                f"{name}.yaml", overrides=[f"hydra.searchpath=[{','.join(repr(item) for item in search)}]"]
            )
            tree = OmegaConf.to_container(config, resolve=False)
    except ConfigError:
        raise
    except Exception as error:  # of what a user can write in `defaults` and `hydra`, Hydra expects a part only
        raise ConfigError(
            f"{path}: {_error_text(error)} (Fragments are looked up relative to the YAML and to {fragments_dir()}.)"
        ) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items() if key not in ("hydra", "defaults")}


def _search_path(path: Path, written: Mapping[str, Any]) -> list[str]:
    """`hydra.searchpath` of a YAML whose `defaults` and `hydra` are of the right form."""
    defaults, hydra = written.get("defaults"), written.get("hydra")
    if defaults is not None and not (isinstance(defaults, list) and all(isinstance(x, str | dict) for x in defaults)):
        raise ConfigError(f"{path}: defaults: {show(defaults)} must be a list of names of fragments.")
    if hydra is not None and not isinstance(hydra, dict):
        raise ConfigError(f"{path}: hydra: {show(hydra)} must be a mapping of keys to values.")
    paths = (hydra or {}).get("searchpath") or []
    if not isinstance(paths, list) or not all(isinstance(item, str) for item in paths):
        raise ConfigError(f"{path}: hydra.searchpath: {show(paths)} must be a list of directories.")
    return paths


def _fragments(written: Mapping[str, Any], folders: Sequence[str]) -> Iterator[Path]:
    """Yield the files that the defaults list of a YAML names, in the forms `x@_here_`, `group: x` and `group: [x]`."""
    for item in written.get("defaults") or ():
        for group, names in ({"": item} if isinstance(item, str) else item).items():
            for name in names if isinstance(names, list) else [names]:
                parts = [str(part).split("@")[0].split(" ")[-1] for part in (group, name)]
                file = "/".join(parts).strip("/").removesuffix(".yaml") + ".yaml"
                places = (path_info(Path(folder.removeprefix("file://"), file)) for folder in folders)
                if found := next((place for place in places if place.is_file), None):
                    yield found.path.resolve()


def _error_text(error: BaseException) -> str:
    """Return an error of Hydra or OmegaConf on one line."""
    if isinstance(error, RecursionError):
        return _ENDLESS
    lines = str(error).split("Config search path")[0].split("full_key:")[0]
    return " ".join(lines.split())[:500] or type(error).__name__


# --- references


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
    except RecursionError:
        raise
    except Exception as error:  # resolvers such as oc.decode raise what they like
        problems.append(f"{path}: {_error_text(error)}.")
        return None
    return _resolved(value, path, problems)


def yaml_at(path: str) -> tuple[Path, str]:
    """The directory and the name of a YAML, by its path; code beside it can be imported from now on. Raises ConfigError
    that says what is there instead."""
    file = expanded(path if path.endswith((".yaml", ".yml")) else f"{path}.yaml")
    status = path_info(file)
    if not status.is_file:
        named = path_info(path)
        folder = named.path if named.is_directory else file.parent
        near = yaml_names(folder) if path_info(folder).is_directory else []
        shown = "This folder" if folder == Path() else folder
        there = f" {shown} has {', '.join(near)}." if near else ""
        if named.is_file:
            raise ConfigError(f"{named.why} whose name does not end in .yaml or .yml. Rename it.{there}")
        status = named if named.exists else status
        raise ConfigError(f"{status.why}{', not a YAML' if status.exists else ''}. Name a YAML first.{there}")
    add_folder(file.parent.resolve())
    return file.parent.resolve(), file.stem


def locate_yaml(config_path: str, config_name: str, script: str | None = None) -> tuple[Path, str]:
    """The directory and the name of a YAML; code beside it can be imported from now on. Raises ConfigError that says
    where was looked, and what is there."""
    folder, name = _place(config_path, config_name)
    directory = _directory(folder, name, script)
    add_folder(directory)
    if not name:
        raise ConfigError(
            f"--config_name is missing. There: {', '.join(yaml_names(directory)) or 'no YAML'} in {directory}."
        )
    return directory, name


def _place(config_path: str, config_name: str) -> tuple[str, str]:
    """Folder and name of the YAML. A name may have a folder before it.

    Example: _place("examples", "tiny-sort/tiny_sort") == ("examples/tiny-sort", "tiny_sort")
    """
    folder, slash, name = config_name.rpartition("/")
    return (os.path.join(config_path, folder or slash), name) if slash else (config_path, config_name)


def _directory(config_path: str, name: str, script: str | None) -> Path:
    """The directory of the YAML: of those that `config_path` may mean the first that has one of this name, or exists.
    Relative to the script comes before the current folder, but `.` is the current one. Raises ConfigError that names
    the places looked at."""
    bases = [*([Path(script).resolve().parent] if script else []), Path.cwd()]
    written = path_info(config_path)
    path = written.path
    if path == Path():
        bases.reverse()
    looks = [path_info(base / path) for base in bases]
    there = list(dict.fromkeys(status.path.resolve() for status in looks if status.is_directory))
    if not there:
        if unclear := [status.why for status in (written, *looks) if status.kind in ("hidden", "impossible")]:
            raise ConfigError(f"--config_path {show(config_path)}: {unclear[0]}.")
        if any(status.is_file for status in looks):
            raise ConfigError(f"--config_path {config_path} is a file: name its folder, and the YAML in --config_name.")
        looked = " and ".join(dict.fromkeys(str(status.path) for status in looks))
        raise ConfigError(f"--config_path {config_path}: there is no such directory. Looked at {looked}.")
    having = [place for place in there if path_info(place / f"{_stem(place, name)}.yaml").is_file]
    if len(having) > 1:
        file = f"{_stem(having[0], name)}.yaml"
        _say(f"--config_path {config_path}: {file} is also in {having[1]}; the one in {having[0]} is used.")
    return (having or there)[0]


def _say(text: str, tone: Tone = "") -> None:
    with suppress(BrokenPipeError):  # a reader that has seen enough, such as head, does not end the run
        say(text, tone=tone)
