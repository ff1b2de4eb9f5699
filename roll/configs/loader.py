"""From `--config_path --config_name key=value ...` to one plain tree: Hydra composes, overrides are applied,
`${...}` resolved.

Fragments named in the defaults list (`../config/deepspeed_zero2@_here_`) are found beside the YAML first, then among
those shipped
with this package, so that a YAML may lie anywhere.
"""

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roll.configs.base import Settings
from roll.configs.problems import nearest, show
from roll.errors import ConfigError

REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w-]*)(?=[.\[}\s])")
WHOLE_REFERENCE = re.compile(r"\$\{\s*([\w.-]+)\s*\}")
PACKAGED_FRAGMENTS = Path(__file__).parent / "fragments" / "config"
CHECKOUT_FRAGMENTS = Path(__file__).parents[2] / "examples" / "config"


@dataclass(frozen=True)
class Composed:
    """A resolved tree. `settings` are the keys to validate; `variables` are helper values used through `${...}`."""

    settings: dict[str, Any]
    variables: dict[str, Any]
    unused: tuple[str, ...]  # variables that came from a fragment and that no `${...}` names


def fragments_dir() -> Path:
    """Where the shipped fragments are: in an installed package, or in a source checkout. The folder is named
    `config`, since Hydra
    resolves `../config/x` against it."""
    return PACKAGED_FRAGMENTS if PACKAGED_FRAGMENTS.is_dir() else CHECKOUT_FRAGMENTS


def load_tree(directory: Path, name: str, overrides: Sequence[str], cls: type[Settings]) -> Composed:
    """The tree of one YAML with its fragments and overrides.

    Raises ConfigError for a YAML that is not there or does not parse, an override that is none, and `${...}` that
    lead nowhere.
    """
    name = name.removesuffix(".yaml").removesuffix(".yml")
    path = find_yaml(directory, name)
    own = _read(path)
    tree = _compose(directory.resolve(), name, own)
    fragment_keys = set(tree) - set(own)
    # A role's copy of a fragment is made when an override reaches into it: after all overrides of the fragment itself.
    parsed = _parsed(overrides)
    crossing = [item for item in parsed if _crosses_reference(tree, item[0])]
    for override in [item for item in parsed if item not in crossing] + crossing:
        _apply(tree, *override)
    problems: list[str] = []
    referenced = set(_references(tree))
    variables = (referenced | fragment_keys) - set(cls.model_fields)
    try:
        resolved = _resolved(OmegaConf.create(tree), "", problems)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}.") from None
    if problems:
        raise ConfigError(*problems)
    resolved.setdefault("exp_name", path.stem)
    return Composed(
        settings={key: value for key, value in resolved.items() if key not in variables},
        variables={key: value for key, value in resolved.items() if key in variables},
        unused=tuple(sorted(variables - referenced)),
    )


def find_yaml(directory: Path, name: str) -> Path:
    """The file of a config name. Raises ConfigError that lists what is there instead."""
    if not directory.is_dir():
        raise ConfigError(f"--config_path {directory}: there is no such directory.")
    path = directory / f"{name}.yaml"
    if path.is_file():
        return path
    there = sorted(str(file.relative_to(directory))[: -len(".yaml")] for file in directory.glob("*.yaml"))
    match = nearest(name, there)
    hint = f"Did you mean {match}?" if match else f"There: {', '.join(there) or 'no YAML at all'}."
    raise ConfigError(f"--config_name {name}: there is no {name}.yaml in {directory}. {hint}")


def _read(path: Path) -> dict[str, Any]:
    """The file by itself: which keys stand in it, and that it is YAML at all."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not {show(content)}.")
    return content


def _compose(directory: Path, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    hydra = own.get("hydra")
    search = list(hydra.get("searchpath") or []) if isinstance(hydra, Mapping) else []
    search.append(f"file://{fragments_dir()}")
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(directory), job_name="roll", version_base=None):
            # The YAML's own keys win over its fragments', with or without `_self_`.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            config = compose(name, overrides=[f"hydra.searchpath=[{','.join(repr(str(item)) for item in search)}]"])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        text = " ".join(str(error).split("Config search path")[0].split())
        raise ConfigError(
            f"{directory / name}.yaml: {text} (Fragments are looked up relative to the YAML and to {fragments_dir()}.)"
        ) from None
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items() if key not in ("hydra", "defaults")}


# --- overrides


def _parsed(overrides: Sequence[str]) -> list[tuple[str, Any, bool]]:
    """(dotted key, value, delete?) of each override."""
    parser = OverridesParser.create()
    found: list[tuple[str, Any, bool]] = []
    problems: list[str] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        delete = key.startswith("~")
        key = key.lstrip("+~").strip()
        if not key or not (equals or delete) or text.startswith("-"):
            problems.append(
                f"{text!r} is no override. Write key=value, such as actor_train.training_args.learning_rate=1e-6."
            )
            continue
        if key == "hydra" or key.startswith("hydra."):
            problems.append(f"{text!r}: Hydra's own settings cannot be overridden here.")
            continue
        found.append((key, None if delete else _value(parser, key, value), delete))
    if problems:
        raise ConfigError(*problems)
    return found


def _value(parser: OverridesParser, key: str, text: str) -> Any:
    """A value in Hydra's grammar; what that cannot read, such as list(range(0,8)) or a regular expression, is taken
    as text."""
    try:
        override = parser.parse_override(f"{key}={text}")
    except HydraException:
        return text.strip()
    if override.is_sweep_override():
        return text.strip()
    value = override.value()
    return OmegaConf.to_container(value) if isinstance(value, DictConfig | ListConfig) else value


def _crosses_reference(tree: Mapping[str, Any], key: str) -> bool:
    """True if the way to a key leads through a `${...}`."""
    node: Any = tree
    for part in key.split(".")[:-1]:
        node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, str):
            return True
    return False


def _apply(tree: dict[str, Any], key: str, value: Any, delete: bool) -> None:
    node: Any = tree
    *parents, last = key.split(".")
    for i, part in enumerate(parents):
        child = _child(node, part, key)
        if isinstance(child, str) and (match := WHOLE_REFERENCE.fullmatch(child.strip())):
            child = copy.deepcopy(_lookup(tree, match[1], ".".join(parents[: i + 1])))
            _set(node, part, child)
        if child is None:
            child = {}
            _set(node, part, child)
        if not isinstance(child, dict | list):
            where = ".".join(parents[: i + 1])
            raise ConfigError(f"override {key}: {where} is {show(child)}, which has no keys below it.")
        node = child
    if delete:
        if isinstance(node, dict):
            node.pop(last, None)
    else:
        _child(node, last, key)
        _set(node, last, value)


def _lookup(tree: dict[str, Any], dotted: str, where: str) -> Any:
    """What `${dotted}` names, following references."""
    node: Any = tree
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, str) and (match := WHOLE_REFERENCE.fullmatch(node.strip())):
            node = _lookup(tree, match[1], where)
    if node is None:
        raise ConfigError(f"{where}: ${{{dotted}}} leads nowhere.")
    return node


def _child(node: Any, part: str, key: str) -> Any:
    if isinstance(node, list):
        if not part.isdigit() or int(part) >= len(node):
            raise ConfigError(f"override {key}: {part} is no position in a list of {len(node)}.")
        return node[int(part)]
    return node.get(part)


def _set(node: Any, part: str, value: Any) -> None:
    node[int(part) if isinstance(node, list) else part] = value


# --- references


def _references(value: Any) -> Iterable[str]:
    """First parts of all absolute `${...}` in a tree: the top-level keys that are used as variables."""
    if isinstance(value, str):
        yield from REFERENCE.findall(value)
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(child)


def _resolved(node: Any, path: str, problems: list[str]) -> Any:
    """The node with every `${...}` replaced; what leads nowhere is collected, not raised."""
    if isinstance(node, DictConfig):
        found: dict[Any, Any] = {}
        for key in node:
            found[key] = _item(node, key, f"{path}.{key}" if path else str(key), problems)
        return found
    if isinstance(node, ListConfig):
        return [_item(node, i, f"{path}[{i}]", problems) for i in range(len(node))]
    return node


def _item(node: DictConfig | ListConfig, key: Any, path: str, problems: list[str]) -> Any:
    if OmegaConf.is_missing(node, key):
        problems.append(f"{path} is ??? (must be set). Set it in the YAML or as {path}=value.")
        return None
    try:
        value = node[key]
    except OmegaConfBaseException as error:
        text = str(error).splitlines()[0]
        problems.append(f"{path}: {text}.")
        return None
    return _resolved(value, path, problems)
