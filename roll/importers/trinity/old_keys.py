"""Trinity-RFT's older ways: keys before its `buffer` had the tasks, and a file of verl's keys beside the YAML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.configs.load.yaml_file import read_yaml
from roll.importers.convert import SourceKeys, resolved_leaves
from roll.importers.rows import Condition, SourceLookup
from roll.importers.verl.files import beside

_CONFIG = "trainer.trainer_config"
_CONFIG_PATH = f"{_CONFIG}_path"
_TELLING = ("data.", "explorer.repeat_times", "trainer.algorithm_type", "buffer.train_dataset.")


def old_notes(keys: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """A line on a YAML of the first versions, whose keys have moved since."""
    if any(value is not None and key.startswith(_TELLING) for key, value in keys):
        yield "Read as Trinity-RFT before 0.2, by its keys: tasks in data, the algorithm in explorer and trainer."


class ReadPath(str):
    """The path of a file whose keys have been read."""

    __slots__ = ()


def with_trainer_config(original: SourceKeys, source: Path | None) -> SourceKeys:
    """The keys with those of the file of `trainer_config_path`, where it lies beside the YAML, whose own keys count
    before them."""
    path = next((value for key, value in original.keys if key == _CONFIG_PATH), None)
    file = beside(path, source) if isinstance(path, str) and source is not None else None
    if file is None or file.suffix not in (".yaml", ".yml"):
        return original
    there = {key for key, _ in original.keys}
    more = [(f"{_CONFIG}.{key}", value) for key, value in resolved_leaves(read_yaml(file))]
    keys = [(key, ReadPath(value) if key == _CONFIG_PATH else value) for key, value in original.keys]
    return replace(original, keys=(*keys, *(item for item in more if item[0] not in there)))


def _is_read(source: SourceLookup) -> str:
    value = source(_CONFIG_PATH) or source(f"trinity.{_CONFIG_PATH}")
    return "the file beside this one is read" if isinstance(value, ReadPath) else ""


OLD_CONDITIONS: Mapping[str, Condition] = {"unread config": _is_read}
