"""`roll completion SHELL`: what a shell has to know to complete the words of `roll`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any, cast

from roll.commands.table import SUBCOMMANDS, parser_of
from roll.configs.presets.table import PRESETS
from roll.configs.reference import schema_of
from roll.errors import ConfigError
from roll.run.spec import PIPELINES, pipeline_of
from roll.utils.imports import resolve

SHELLS = ("bash", "zsh")
USAGE = f"""roll completion SHELL      SHELL: {" or ".join(SHELLS)}

Subcommands, their options, and the keys of configurations level by level; files everywhere else. Write it once
  roll completion bash > ~/.roll-completion.bash
and read it in ~/.bashrc
  source ~/.roll-completion.bash"""

WITH_KEYS = ("run", "plan", "eval", "doctor")
"""Subcommands that take a YAML, and key=value behind it."""

_CHOICES: Mapping[str, Iterable[str]] = {
    "schema": PIPELINES,
    "explain": PRESETS,
    "data": ("check",),
    "completion": SHELLS,
}
"""Words of subcommands whose help does not list them in the form of argparse."""

_FUNCTION = """
_roll() {
    local word="${COMP_WORDS[COMP_CWORD]}" words="" keys="" key rest
    COMPREPLY=()
    case "$word ${COMP_WORDS[COMP_CWORD - 1]}" in "= "* | *" =") return 0 ;; esac  # a value: files
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="$_roll_commands"
    else
        case "${COMP_WORDS[1]}" in
@CASES@
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ "$COMP_CWORD" -gt 2 ] && [ -n "$keys" ] || return 0
    for key in $(compgen -W "$keys" -- "$word"); do
        rest="${key#"$word"}"
        case "$rest" in *.*) key="$word${rest%%.*}." ;; esac
        COMPREPLY+=("$key")
    done
    case "${COMPREPLY[0]}" in *[.=]) type compopt > /dev/null 2>&1 && compopt -o nospace ;; esac
    return 0
}
complete -o default -o bashdefault -F _roll roll"""
_OF_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit"


def run(argv: Sequence[str]) -> Iterator[str]:
    """The script. Raises ConfigError for another shell."""
    if argv and argv[0] in ("-h", "--help"):
        yield USAGE
        return
    if len(argv) != 1 or argv[0] not in SHELLS:
        raise ConfigError(f"name one shell: {' or '.join(SHELLS)}.")
    if argv[0] == "zsh":
        yield _OF_ZSH
    yield f'_roll_commands="{" ".join(SUBCOMMANDS)}"'
    yield f'_roll_keys="{" ".join(keys())}"'
    yield _FUNCTION.replace("@CASES@", "\n".join(_cases()))


def _cases() -> Iterator[str]:
    for name in SUBCOMMANDS:
        has_keys = ' keys="$_roll_keys"' if name in WITH_KEYS else ""
        yield f'            {name}) words="{" ".join(words_of(name))}"{has_keys} ;;'


def words_of(name: str) -> list[str]:
    """The options of a subcommand and the words that it chooses between, as its help tells them."""
    text = _help(name)
    options = re.findall(r"^ +(?:-\w(?: \S+)?, )?(--\w[\w-]*)", text, re.MULTILINE)
    usage = text.partition("\n\n")[0]
    choices = re.findall(r"(?<!\S)\{([\w,-]+)\}", re.sub(r"--\w[\w-]* \{[^}]*\}", "", usage))
    chosen = [word for listed in choices for word in listed.split(",")]
    return list(dict.fromkeys([*options, *chosen, *_CHOICES.get(name, ())]))


def _help(name: str) -> str:
    if SUBCOMMANDS[name].options:
        return parser_of(SUBCOMMANDS[name]).format_help()
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        subcommand = cast("Callable[[Sequence[str]], Iterable[str] | int]", resolve(SUBCOMMANDS[name].function))
        done = subcommand(["--help"])
        if not isinstance(done, int):
            shown.write("\n".join(done))
    return shown.getvalue()


def keys() -> list[str]:
    """Dotted keys of every kind of run, each with `=` at its end."""
    names: dict[str, None] = {}
    for kind in PIPELINES:
        schema = schema_of(pipeline_of(kind).config_class())
        names |= dict.fromkeys(_keys_below(schema, schema["$defs"], ""))
    return list(names)


def _keys_below(node: Mapping[str, Any], sections: Mapping[str, Any], at: str) -> Iterator[str]:
    for name, value in node.get("properties", {}).items():
        inner = [sections[ref.rpartition("/")[2]] for ref in _references(value)]
        if not any(section.get("properties") for section in inner):
            yield f"{at}{name}="
        for section in inner:
            yield from _keys_below(section, sections, f"{at}{name}.")


def _references(value: Mapping[str, Any]) -> Iterator[str]:
    yield from (part["$ref"] for part in (value, *value.get("anyOf", ())) if "$ref" in part)
