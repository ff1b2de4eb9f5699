"""`key=value`, `+key=value` and `~key` of the command line, applied to a composed tree."""

import copy
import re
from collections.abc import Mapping, Sequence
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


def apply_overrides(tree: dict[str, Any], texts: Sequence[str]) -> None:
    """Changes the tree. Raises ConfigError with every override that is none, or that does not fit the tree."""
    parser, problems = OverridesParser.create(), list[str]()
    keys = {text: text.partition("=")[0].lstrip("+~").strip() for text in texts}
    for text, key in keys.items():
        is_one = ("=" in text) != text.startswith("~")
        if not is_one or text.startswith("-") or not all(part.strip() for part in key.split(".")):
            problems.append(
                f"{show(text)} is not an override. Write key=value, such as "
                "actor_train.training_args.learning_rate=1e-6, or ~key."
            )
        elif key.partition(".")[0] == "hydra":
            problems.append(f"{show(text)}: Hydra's own settings cannot be overridden here.")
    if problems:
        raise ConfigError(*problems)
    # A role's copy of a fragment is made when an override reaches into it: after all overrides of the fragment itself.
    for text in sorted(texts, key=lambda each: crosses_reference(tree, keys[each])):
        try:
            _apply(tree, text, keys[text], parser)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)


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


def _apply(tree: dict[str, Any], text: str, key: str, parser: OverridesParser) -> None:
    node: Any = tree
    *parents, last = key.split(".")
    for i, part in enumerate(parents):
        part, where = _place(node, part, text), ".".join(parents[: i + 1])
        child = node[part] if isinstance(node, list) else node.get(part)
        if isinstance(child, str) and (match := WHOLE_REFERENCE.fullmatch(child.strip())):
            child = copy.deepcopy(lookup(tree, match[1], where))
        if child is None and not text.startswith("~"):
            child = {}
        if not isinstance(child, dict | list):
            raise ConfigError(f"override {text}: {where} is {show(child)}, which has no keys below it.")
        node[part] = child
        node = child
    place = _place(node, last, text)
    if not text.startswith("~"):
        node[place] = _value(parser, key, text.partition("=")[2])
    elif isinstance(node, dict) and place not in node:
        raise ConfigError(f"override {text}: there is no {key} to remove.{did_you_mean(last, map(str, node))}")
    else:
        del node[place]


def _place(node: dict[str, Any] | list[Any], part: str, text: str) -> Any:
    """A key of a mapping; a position in a list, or that of its entry with this `name`."""
    if isinstance(node, dict):
        return part
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if part in names:
        return names.index(part)
    if not part.isdecimal() or not part.isascii() or int(part) >= len(node):
        known = [name for name in names if isinstance(name, str)]
        names_text = f", and none of its names: {', '.join(known)}" if known else ""
        raise ConfigError(f"override {text}: {part} is not a position in a list of {len(node)}{names_text}.")
    return int(part)
