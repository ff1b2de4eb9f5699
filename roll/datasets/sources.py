"""Sources that `data_args.file_name` names: files, folders, wildcards, remote files, data sets of the Hugging Face
hub."""

import functools
import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import ENDINGS, FORMATS, DataFile, DataSource, RemoteFile, Row
from roll.datasets.remote import expand, local_path, missing_package, protocol_of
from roll.errors import ConfigError, describe
from roll.utils.files import PathInfo, is_hub_id, path_info
from roll.utils.imports import is_installed, resolve
from roll.utils.secrets import mask

# Data sets of the Hugging Face hub, by the package `datasets`.

INSTALL = "pip install 'datasets>=4,<6'"
DEFAULT_SPLIT = "train"
_ROWS_READ_IN_FULL = 20_000


@functools.lru_cache(maxsize=16)
def load_hub_set(name: str, subset: str | None, split: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a data set of the hub, or of a folder laid out like one; loaded once per process. Raises ConfigError
    where the package is missing, where there is no such set, subset or split, and where the hub cannot be reached and
    its cache does not have the set."""
    if (missing := missing_hub_package()) is not None:
        raise ConfigError(f"{name} is not a file on this machine: {missing}")
    load: Any = resolve("datasets:load_dataset")
    try:
        return _undecoded(load(name, subset, split=split))
    except Exception as error:  # the package's own, requests', httpx's, fsspec's, pyarrow's
        selection = ", ".join([f"split {split}", *([f"subset {subset}"] if subset else [])])
        raise ConfigError(
            f"{name} ({selection}) cannot be loaded as a data set of the Hugging Face hub: {describe(error)}. If it is "
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


def missing_hub_package() -> str | None:
    """Return what must be installed before such a set can be read, None if nothing is missing."""
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


_KNOWN = ", ".join(ENDINGS)
MAX_BYTES_IN_FULL = 16 * 2**20  # JSON of this size is read in about 0.2 s
GENERATED = "reasoning_gym:"  # before the task of which `generated.py` makes rows


def task_of(name: str) -> str | None:
    """Example: "chain_sum" of "reasoning_gym:chain_sum", None of a file."""
    return name.removeprefix(GENERATED) if name.startswith(GENERATED) else None


Choose = Callable[[Sequence[DataSource]], Iterable[Row]]
"""Function that chooses a run's rows among all rows, in their order."""


class NotHere(str):
    """A message on a file or a folder that is not on this machine."""


def all_rows(sources: Sequence[DataSource]) -> Iterator[Row]:
    """Every row of every source. Raises ConfigError where one cannot be read."""
    for source in sources:
        yield from source.rows()


def data_sources(args: DataArgs, key: str, reach: bool = True) -> tuple[list[DataSource], list[str]]:
    """Return the existing sources that `data_args` (at YAML path `key`) name, and a message for each problem with the
    rest. Without `reach` nothing is looked for outside this machine."""
    if not args.file_name:
        return [], [f"{key}.file_name is not set: name files ({_KNOWN}), folders or a data set of the hub"]
    if len(args.dataset_type) not in (0, 1, len(args.file_name)):
        counts = f"{len(args.dataset_type)} entries for {len(args.file_name)} of {key}.file_name"
        return [], [
            f"{key}.dataset_type has {counts}: give one for all, one each, or none (the file name's ending decides)"
        ]
    types = args.dataset_type * (len(args.file_name) if len(args.dataset_type) == 1 else 1)
    sources: list[DataSource] = []
    problems: list[str] = []
    for i, name in enumerate(args.file_name):
        try:
            sources += _Entry(name, types[i] if types else None, args, key).sources(reach)
        except ConfigError as error:
            problems += error.problems
    return sources, problems


def lacking_packages(args: DataArgs, key: str) -> Iterator[str]:
    """Yield what must be installed before remote data can be read."""
    for name in args.file_name:
        if task_of(name) is not None:
            from roll.datasets.generated import missing_generator

            if (missing := missing_generator()) is not None:
                yield f"{key}.file_name: {name} cannot be made: {missing}"
        protocol = protocol_of(name)
        if protocol is not None:
            with suppress(ConfigError):  # of a protocol that there is not, which data_sources tells
                if (missing := missing_package(protocol)) is not None:
                    yield f"{key}.file_name: {mask(name)} cannot be read: {missing}"
            continue
        is_set = protocol is None and names_data_set(name) and not path_info(local_path(name)).exists
        if is_set and (missing := missing_hub_package()) is not None:
            yield f"{key}.file_name: {name} is not a file on this machine: {missing}"


class _Entry:
    """One name of `file_name`. Its methods raise ConfigError."""

    def __init__(self, name: str, dataset_type: str | None, args: DataArgs, key: str):
        self._name, self._type, self._args, self._at = name, dataset_type, args, key
        self._key = f"{key}.file_name"

    def sources(self, reach: bool) -> Iterator[DataSource]:
        if (task := task_of(self._name)) is not None:
            yield from self._generated(task, reach)
            return
        if (protocol := protocol_of(self._name)) is not None:
            yield from self._remote(protocol, reach)
            return
        if not self._name:  # else it would be the current folder
            raise ConfigError(f"{self._key}: the name '' is empty. Name a file, a folder or a data set")
        name = local_path(self._name)
        status = path_info(name)
        if status.is_directory and (self._args.split or self._args.subset):
            yield self._hub_set(str(status.path), reach)
        elif status.is_directory:
            yield from self._folder(status)
        elif status.is_file:
            yield DataFile(status.path, self._format(str(status.path)), self._key)
        elif status.kind in ("hidden", "impossible", "device"):
            raise ConfigError(NotHere(f"{self._key}: {status.why}"))
        elif glob.has_magic(name):
            yield from self._matches(status.path)
        elif names_data_set(name):
            yield self._hub_set(name, reach)
        else:
            tried = "" if status.path.is_absolute() else f" (relative to {Path.cwd()})"
            raise ConfigError(NotHere(f"{self._key}: there is no file {status.path}{tried}"))

    def _generated(self, task: str, reach: bool) -> Iterator[DataSource]:
        from roll.datasets.generated import missing_generator, rows_file

        if (missing := missing_generator()) is None:
            yield DataFile(rows_file(task, self._args, self._at), "json", self._key)
        elif reach:
            raise ConfigError(f"{self._key}: {self._name} cannot be made: {missing}")

    def _folder(self, status: PathInfo) -> Iterator[DataSource]:
        try:
            data_files = sorted(file for file in status.path.iterdir() if _is_data(file.name) and file.is_file())
        except OSError as error:
            raise ConfigError(NotHere(f"{self._key}: cannot look into {status.path}: {error.strerror}")) from error
        if not data_files:
            raise ConfigError(
                NotHere(
                    f"{self._key}: the folder {status.path} holds no {_KNOWN} files. Name others by a pattern, such as "
                    f"{status.path}/**/*.jsonl"
                )
            )
        for file in data_files:
            yield DataFile(file, self._format(str(file)), self._key)

    def _matches(self, pattern: Path) -> Iterator[DataSource]:
        matches = [file for each in sorted(glob.glob(str(pattern), recursive=True)) if (file := Path(each)).is_file()]
        if not matches:
            raise ConfigError(NotHere(f"{self._key}: no file matches {pattern}"))
        for file in matches:
            yield DataFile(file, self._format(str(file)), self._key)

    def _remote(self, protocol: str, reach: bool) -> Iterator[DataSource]:
        try:
            missing = missing_package(protocol)
        except ConfigError as error:
            raise ConfigError(f"{self._key}: {mask(self._name)} cannot be read: {error}") from error
        if not reach:
            return
        if missing is not None:
            raise ConfigError(f"{self._key}: {mask(self._name)} cannot be read: {missing}")
        try:
            urls = expand(self._name)
        except ConfigError as error:
            raise ConfigError(f"{self._key}: {error}") from error
        whole = urls == [self._name]
        urls = urls if whole or glob.has_magic(self._name) else [url for url in urls if _is_data(_file_of(url))]
        if not urls:
            raise ConfigError(f"{self._key}: the folder {mask(self._name)} holds no {_KNOWN} files")
        for url in urls:
            yield RemoteFile(url, self._format(url), self._key)

    def _hub_set(self, name: str, reach: bool) -> HubSet:
        if self._type is not None:
            raise ConfigError(
                f"{self._at}.dataset_type: {self._type} says how a file is read, and {name} is a data set. Leave "
                "dataset_type out, or name its files"
            )
        if reach and (missing := missing_hub_package()) is not None:
            what = "is read with split and subset" if Path(name).is_dir() else "is not a file on this machine"
            raise ConfigError(f"{self._key}: {name} {what}: {missing}")
        return HubSet(name, self._args.subset, self._args.split or DEFAULT_SPLIT, self._key)

    def _format(self, name: str) -> str:
        ending = PurePosixPath(_file_of(name)).suffix.lower()
        by_ending, shown = ENDINGS.get(ending), mask(name)
        if self._type is None:
            if by_ending is None:
                raise ConfigError(
                    f"{self._key}: {shown} does not end in {_KNOWN}; say what it is with {self._at}.dataset_type"
                )
            return by_ending
        by_type = FORMATS.get(self._type)
        if by_type is None:
            raise ConfigError(f"{self._at}.dataset_type: {self._type!r} is not one of {', '.join(FORMATS)}")
        if by_ending not in (None, by_type):
            contradiction = f"{self._at}.dataset_type says {self._type}, but {shown} ends in {ending}"
            raise ConfigError(f"{contradiction}; leave dataset_type out or correct it")
        return by_type


def is_data_set_id(name: str) -> bool:
    """True for owner/name that is no path of this machine."""
    return name.count("/") == 1 and is_hub_id(name)


def names_data_set(name: str) -> bool:
    """True for an entry of file_name that is read as a data set of the hub."""
    return is_data_set_id(name) and not has_ending(name)


def has_ending(name: str) -> bool:
    """True for an entry that ends as a data file does."""
    return PurePosixPath(_file_of(name)).suffix.lower() in ENDINGS


def _is_data(name: str) -> bool:
    """True for a data file in a folder. Other programs' files begin with . or _ and do not count."""
    return not re.match(r"[._]", name) and has_ending(name)


def _file_of(name: str) -> str:
    """The last part of a path, or of an address without what follows a question mark."""
    path = name if protocol_of(name) is None else urlsplit(name).path or name
    return path.rsplit("/", 1)[-1]
