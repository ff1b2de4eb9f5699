"""Trinity-RFT's rows, and its names: what verl calls its keys, and those of its own, with `trinity.` before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roll.importers.row_files import names_of, rows_of
from roll.importers.rows import Row, SourceLookup, data

BUFFER = "buffer.trainer_input.experience_buffer"
_NAMES = {kind: names_of(names) for kind, names in data("trinity/names.yaml").items()}
RL_NAMES: Mapping[str, str] = _NAMES["rl"]
ROW_NAMES: Mapping[str, str] = _NAMES["rows"]
SFT_NAMES: Mapping[str, str] = {**ROW_NAMES, **_NAMES["sft"]}
_OLD: Mapping[str, str] = _NAMES["old"]


def own_rows(*names: str) -> tuple[Row, ...]:
    """Return the rows of keys that are Trinity-RFT's own."""
    return tuple(replace(row, key=f"trinity.{row.key}") for name in names for row in rows_of(f"trinity/{name}.yaml"))


def name_of(key: str, names: Mapping[str, str]) -> str:
    """Return the name under which rows know a key: its own, that of its section, or Trinity's own."""
    key = present_key(key)
    if key in names:
        return names[key]
    for section, theirs in names.items():
        if section.endswith(".") and key.startswith(section):
            return theirs + key[len(section) :]
    return f"trinity.{key}"


def present_key(key: str) -> str:
    """Return the present name of a key. Example: data.format.prompt_key is that of the task set."""
    section = next((old for old in _OLD if old.endswith(".") and key.startswith(old)), None)
    return _OLD[section] + key[len(section) :] if section else _OLD.get(key, key)


class ReadPath(str):
    """The path of a file whose keys have been read."""

    __slots__ = ()


def is_read(source: SourceLookup) -> str:
    value = source("trinity.trainer.trainer_config_path")
    return "the file beside this one is read" if isinstance(value, ReadPath) else ""
