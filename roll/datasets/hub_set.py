"""Data sets of the Hugging Face hub, by the package `datasets`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.datasets.loader import DataSource, Row
from roll.errors import ConfigError, describe
from roll.utils.imports import is_installed, resolve

INSTALL = "pip install 'datasets>=4,<6'"
DEFAULT_SPLIT = "train"
_ROWS_READ_IN_FULL = 20_000


@functools.lru_cache(maxsize=16)
def load_hub_set(name: str, subset: str | None, split: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a data set of the hub, or of a folder laid out like one; loaded once per process. Raises ConfigError
    where the package is missing, where there is no such set, subset or split, and where the hub cannot be reached and
    its cache does not have the set."""
    if (missing := missing_package()) is not None:
        raise ConfigError(f"{name} is not a file on this machine: {missing}")
    load: Any = resolve("datasets:load_dataset")
    try:
        return _undecoded(load(name, subset, split=split))
    except Exception as error:  # the package's own, requests', httpx's, fsspec's, pyarrow's
        asked = ", ".join([f"split {split}", *([f"subset {subset}"] if subset else [])])
        raise ConfigError(
            f"{name} ({asked}) cannot be loaded as a data set of the Hugging Face hub: {describe(error)}. If it is "
            f"meant to be one, and the hub cannot be reached from here, fetch it elsewhere (hf download {name} "
            "--repo-type dataset --local-dir ...) and name its files or its folder"
        ) from error


def _undecoded(rows: Any) -> Any:
    """The same, with pictures, videos and sound as they are stored: to decode them takes packages and time, and such
    rows are refused."""
    for column, feature in (getattr(rows, "features", None) or {}).items():
        if (stored := _stored(feature)) != feature:
            rows = rows.cast_column(column, stored)
    return rows


def _stored(feature: Any) -> Any:
    """A feature of the package's, at any depth without decoding."""
    if isinstance(feature, Mapping):
        return {name: _stored(inner) for name, inner in feature.items()}
    if isinstance(feature, list):
        return [_stored(inner) for inner in feature]
    if getattr(feature, "decode", False):
        return replace(feature, decode=False)
    inner = getattr(feature, "feature", None)
    return feature if inner is None else replace(feature, feature=_stored(inner))


def missing_package() -> str | None:
    """What is to be installed before such a set can be read, None if nothing is."""
    if is_installed("datasets"):
        return None
    return f"reading it as a data set of the Hugging Face hub needs the package datasets. Install it: {INSTALL}"


@dataclass(frozen=True)
class HubSet(DataSource):
    """One split of a data set. Its rows are called by it: openai/gsm8k:main:train:0."""

    id: str
    subset: str | None
    split: str
    key: str

    @property
    def name(self) -> str:
        return ":".join([self.id, *([self.subset] if self.subset else []), self.split])

    def rows(self) -> Iterator[Row]:
        for place, values in enumerate(self._load()):
            yield Row(self.name, place, values)

    def is_large(self, num_bytes: int) -> bool:
        del num_bytes  # of its text nothing is known
        return len(self._load()) > _ROWS_READ_IN_FULL

    def _load(self) -> Sequence[Mapping[str, Any]]:
        try:
            return load_hub_set(self.id, self.subset, self.split)
        except ConfigError as error:
            raise ConfigError(f"{self.key}: {error}") from error
