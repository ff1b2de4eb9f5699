"""`key=value`, `+key=value` and `~key` of the command line, applied to a composed tree."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

from roll.configs.problems import did_you_mean
from roll.errors import ConfigError
from roll.utils.text import show

WHOLE_REFERENCE = re.compile(r"\$\{\s*([\w.-]+)\s*\}")


def crosses_reference(tree: Mapping[str, Any], key: str) -> bool:
    """True if the way to a key leads through a `${...}`."""
    node: Any = tree
    for part in key.split(".")[:-1]:
        node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, str):
            return True
    return False


def lookup(tree: dict[str, Any], dotted: str, where: str) -> Any:
    """Return the value that `${dotted}` names, following references."""
    node: Any = tree
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, str) and (match := WHOLE_REFERENCE.fullmatch(node.strip())):
            node = lookup(tree, match[1], where)
    if node is None:
        raise ConfigError(f"{where}: ${{{dotted}}} leads nowhere.")
    return node


@dataclass(frozen=True)
class Override:
    """One of the command line. `value` of a deletion is what must be there, if `has_value`."""

    text: str
    key: str
    value: Any = None
    has_value: bool = True
    deletes: bool = False


def apply_overrides(tree: dict[str, Any], texts: Sequence[str]) -> None:
    """Changes the tree. Raises ConfigError with every override that is none, or that does not fit the tree."""
    overrides = _parsed(texts)
    # A role's copy of a fragment is made when an override reaches into it: after all overrides of the fragment itself.
    crossing = [item for item in overrides if crosses_reference(tree, item.key)]
    problems: list[str] = []
    for override in [item for item in overrides if item not in crossing] + crossing:
        try:
            _apply(tree, override)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


def _parsed(texts: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed: list[Override] = []
    problems: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        deletes = key.startswith("~")
        key = key.lstrip("+~").strip()
        shown = show(text)
        if not all(part.strip() for part in key.split(".")) or not (equals or deletes) or text.startswith("-"):
            problems.append(
                f"{shown} is not an override. Write key=value, such as actor_train.training_args.learning_rate=1e-6."
            )
        elif key == "hydra" or key.startswith("hydra."):
            problems.append(f"{shown}: Hydra's own settings cannot be overridden here.")
        else:
            parsed.append(Override(text, key, _value(parser, key, value) if equals else None, bool(equals), deletes))
    if problems:
        raise ConfigError(*problems)
    return parsed


def _value(parser: OverridesParser, key: str, text: str) -> Any:
    """A value in Hydra's grammar; what that cannot read, such as list(range(0,8)) or a regular expression, is taken
    as text."""
    try:
        override = parser.parse_override(f"{key}={text}")
        if override.is_sweep_override():
            return text.strip()
        value = override.value()
        return OmegaConf.to_container(value) if isinstance(value, DictConfig | ListConfig) else value
    except (HydraException, RecursionError, ValueError, TypeError):  # also a number of 5000 digits, a cast that fails
        return text.strip()


def _apply(tree: dict[str, Any], override: Override) -> None:
    node: Any = tree
    *parents, last = override.key.split(".")
    shown = f"~{override.key}" if override.deletes else override.key
    for i, part in enumerate(parents):
        where = ".".join(parents[: i + 1])
        child = _child(node, part, shown)
        if isinstance(child, str) and (match := WHOLE_REFERENCE.fullmatch(child.strip())):
            child = copy.deepcopy(lookup(tree, match[1], where))
            _set(node, part, child)
        if child is None and override.deletes:
            raise ConfigError(f"override {override.text}: there is no {where}.{did_you_mean(part, _keys(node))}")
        if child is None:
            child = {}
            _set(node, part, child)
        if not isinstance(child, dict | list):
            raise ConfigError(f"override {override.key}: {where} is {show(child)}, which has no keys below it.")
        node = child
    existing = _child(node, last, shown)
    if override.deletes:
        _delete(node, last, existing, override)
    else:
        _set(node, last, override.value)


def _delete(node: Any, last: str, current: Any, override: Override) -> None:
    if isinstance(node, dict) and last not in node:
        raise ConfigError(
            f"override {override.text}: there is no {override.key} to remove.{did_you_mean(last, _keys(node))}"
        )
    if override.has_value and current != override.value:
        raise ConfigError(
            f"override {override.text}: {override.key} is {show(current)}, so it is kept. To remove it whatever its "
            f"value is, write ~{override.key}."
        )
    del node[_position(node, last, override.key) if isinstance(node, list) else last]


def _keys(node: Any) -> Iterator[str]:
    return (key for key in node if isinstance(key, str)) if isinstance(node, dict) else iter(())


def _child(node: Any, part: str, key: str) -> Any:
    return node[_position(node, part, key)] if isinstance(node, list) else node.get(part)


def _set(node: Any, part: str, value: Any) -> None:
    node[_position(node, part, "") if isinstance(node, list) else part] = value


def _position(node: list[Any], part: str, key: str) -> int:
    """A position in a list, or that of its entry with this `name`."""
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if part in names:
        return names.index(part)
    if not part.isdecimal() or not part.isascii() or int(part) >= len(node):
        known = [name for name in names if isinstance(name, str)]
        names_text = f", and none of its names: {', '.join(known)}" if known else ""
        hint = did_you_mean(part, known)
        raise ConfigError(f"override {key}: {part} is not a position in a list of {len(node)}{names_text}.{hint}")
    return int(part)
