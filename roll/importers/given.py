"""What is imported: the keys of a foreign configuration with their values, in the order in which they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse

from roll.configs.base import join
from roll.configs.load.overrides import apply_overrides
from roll.configs.load.yaml_file import read_yaml
from roll.importers.shell.script import Command, command_of
from roll.importers.verl.files import Composed, of_command, of_file

YAML_ENDINGS = (".yaml", ".yml")
_MOST_REFERENCES = 50
_OF_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^{}]*\}")


@dataclass(frozen=True)
class Given:
    """`tree` as it is written, `keys` with `${...}` resolved where they lead somewhere. A text that names the
    environment stays as it is: what a machine has in it does not belong into a file. `taken`: keys that Hydra is told
    to take away (`~key`) and that only the defaults of the other system have. `groups`: words that choose one of its
    files for a section; `bases`: verl's own configurations under them, `notes`: what became of the files."""

    tree: Mapping[str, Any]
    keys: tuple[tuple[str, Any], ...]
    command: Command | None = None
    taken: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(path: Path | None, overrides: Sequence[str] = ()) -> Given:
    """The keys of a YAML, or of the command in a shell script, and of overrides. Raises ConfigError for what cannot be
    read."""
    command, found = None, Composed()
    if path is not None and path.suffix in YAML_ENDINGS:
        tree = read_yaml(path)
        found = of_file(path, tree) or Composed(tree)
    elif path is not None:
        command = command_of(path)
        found = of_command(command, path)
    return given_by(found, overrides, command)


def given_by(found: Composed, overrides: Sequence[str] = (), command: Command | None = None) -> Given:
    """What files say, with the words of a command and with overrides."""
    tree = found.tree
    words = [(*command.overrides,) if command else (), tuple(overrides)]
    groups = [text for texts in words for text in texts if _chooses(text, [*words[0], *words[1]])]
    own = [[text for text in texts if text not in groups] for texts in words]
    taken = [text for texts in (_engine(groups), *own) for text in _changed(tree, texts)]
    keys = tuple(_resolved(tree))
    return Given(tree, keys, command, tuple(taken), tuple(groups), tuple(found.bases), tuple(found.notes))


def _chooses(text: str, texts: Sequence[str]) -> bool:
    """True for Hydra's choice of a file for a section, such as `optim=fsdp` beside `optim.lr=1e-5`."""
    key, equals, value = text.partition("=")
    is_word = bool(equals) and "." not in key and value.isidentifier()
    return is_word and any(other.lstrip("+").startswith(f"{key}.") for other in texts)


def _engine(groups: Sequence[str]) -> list[str]:
    """What the choice of an engine says, under what is said of it beside."""
    return [f"engine.strategy={text.partition('=')[2]}" for text in groups if text.startswith("engine=")]


def _changed(tree: dict[str, Any], texts: Sequence[str]) -> list[str]:
    """Changes the tree; returns the keys that are to be taken away and are not there."""
    others = [text for text in texts if not text.startswith("~")]
    apply_overrides(tree, others)
    taken = [text[1:].partition("=")[0] for text in texts if text.startswith("~")]
    there = [key for key in taken if _is_there(tree, key)]
    apply_overrides(tree, [f"~{key}" for key in there])
    return [key for key in taken if key not in there]


def _is_there(tree: Mapping[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; lists of sections are gone through by number, other lists are values.

    Example: {"a": {"b": 1}, "c": [{"d": 2}]} has a.b and c.0.d.
    """
    for key, value in tree.items():
        here = join(path, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for i, item in enumerate(value):
                yield from leaves(item, f"{here}.{i}")
        else:
            yield here, value


def _resolved(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    config = OmegaConf.create(_readable(dict(tree)))
    for key, written in leaves(tree):
        yield key, _value(config, key, written)


def _readable(node: Any) -> Any:
    """The same with texts that are no reference of OmegaConf's, such as `${1:-x}`, as mere texts."""
    if isinstance(node, Mapping):
        return {key: _readable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_readable(value) for value in node]
    return node if not isinstance(node, str) or _is_readable(node) else node.replace("${", "\\${")


@lru_cache(maxsize=1000)
def _is_readable(text: str) -> bool:
    if text.count("${") > _MOST_REFERENCES:
        return False
    try:
        return "${" not in text or bool(parse(text))
    except (OmegaConfBaseException, ValueError, RecursionError):
        return False


def _value(config: Any, key: str, written: Any) -> Any:
    if not isinstance(written, str) or "${" not in written or not _is_readable(written):
        return written
    try:
        value = OmegaConf.select(config, key)
    except (OmegaConfBaseException, ValueError, RecursionError):
        return written
    is_open = isinstance(value, str) and not _OF_ENVIRONMENT.sub("", written).count("${")
    if value is None or is_open:
        return written if is_open or not _is_known(config, key) else None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _is_known(config: Any, key: str) -> bool:
    """True for a reference to something that is null, and not to nothing."""
    try:
        return not OmegaConf.is_missing(config, key)
    except (OmegaConfBaseException, ValueError, RecursionError):
        return False
