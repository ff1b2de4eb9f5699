"""Completion of commands, options, keys and values in a shell, by argcomplete.

eval "$(register-python-argcomplete roll)"      # in ~/.bashrc or ~/.zshrc
"""

import argparse
import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import argcomplete
import yaml
from argcomplete.completers import BaseCompleter, ChoicesCompleter, FilesCompleter

from roll.commands.table import SUBCOMMANDS, parser_of
from roll.configs.base import Settings, holds_mapping, nested_class
from roll.configs.strategies.table import STRATEGIES
from roll.configs.tables.presets import PRESETS
from roll.errors import ConfigError
from roll.run.kind import kind_of

_NAMES = {"algorithm": tuple(PRESETS), "strategy_name": tuple(STRATEGIES)}
"""Values of keys whose type is a text."""


class Overrides(BaseCompleter):
    """Completes `key=value` by the keys of the kind of run that a YAML describes."""

    def __call__(self, *, prefix: str, parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
        try:
            tree = yaml.safe_load(Path(parsed_args.config).read_text(encoding="utf-8"))
            return completed(kind_of(tree).config_class(), tree, prefix) if isinstance(tree, dict) else ()
        except (OSError, ValueError, yaml.YAMLError, ConfigError):  # a message would stand in the middle of the line
            return ()


_COMPLETERS = {
    "config": FilesCompleter(("yaml", "yml")),
    "overrides": Overrides(),
    **dict.fromkeys(("data", "log", "model", "out", "words"), FilesCompleter()),
}


def complete() -> None:
    """Print what may follow the words of the line that a shell asks about, and exit."""
    words = re.split(r"\s+", os.environ["COMP_LINE"])  # the last one is being typed
    command = SUBCOMMANDS.get(words[1]) if len(words) > 2 else None
    if command is None:
        parser = argparse.ArgumentParser(prog="roll")
        parser.add_argument("command", choices=list(SUBCOMMANDS))
    else:
        os.environ["_ARGCOMPLETE"] = "2"  # the line begins with the second word
        parser = parser_of(command) if command.options else argparse.ArgumentParser()
        for action in parser._actions:  # argparse gives no other way to them
            action.completer = _COMPLETERS.get(action.dest)  # type: ignore[attr-defined]
        if {action.dest for action in parser._actions} & {"config", "overrides"} == {"config"}:
            for place in range(len(words)):  # with nargs="*" none could stand behind an option
                parser.add_argument(f"override_{place}").completer = Overrides()  # type: ignore[attr-defined]
        if words[1] == "explain":
            parser._actions[-1].completer = ChoicesCompleter(tuple(PRESETS))  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, append_space=len(words) < 4 or words[-1].startswith("-"))  # not behind a key


def completed(settings: type[Settings], tree: Any, prefix: str) -> list[str]:
    """Complete one override. Sections end with a dot, keys with an equals sign.

    Example: completed(config, {}, "async_pipeline=") == ["async_pipeline=true", "async_pipeline=false"].
    """
    key, sign, _ = prefix.partition("=")
    *above, last = key.split(".")
    place = "".join(f"{part}." for part in above)
    fields = _fields(settings, tree, above)
    if sign:
        return [f"{key}={value}" for value in _values(last, fields.get(last))]
    return [f"{place}{name}{'.' if _is_section(form) else '='}" for name, form in fields.items()]


def _fields(settings: type[Settings], tree: Any, path: list[str]) -> dict[str, Any]:
    """Return the keys at a place with their types. The names in a mapping are those of the YAML."""
    fields: dict[str, Any] = {name: field.annotation for name, field in settings.model_fields.items()}
    for part in path:
        form = fields.get(part)
        inner = nested_class(form)
        if inner is None:
            return {}
        tree = tree.get(part) if isinstance(tree, dict) else None
        if holds_mapping(form):
            fields = dict.fromkeys(tree if isinstance(tree, dict) else (), inner)
        else:
            fields = {name: field.annotation for name, field in inner.model_fields.items()}
    return fields


def _is_section(form: Any) -> bool:
    return nested_class(form) is not None


def _values(key: str, form: Any) -> Iterable[str]:
    if key in _NAMES:
        return _NAMES[key]
    if form is bool:
        return ("true", "false")
    if get_origin(form) is Literal:
        return [str(value) for value in get_args(form)]
    return [value for part in get_args(form) for value in _values("", part)] if _is_union(form) else []


def _is_union(form: Any) -> bool:
    return get_origin(form) in (Union, UnionType)
