"""The list of a checkpoint's files, by which a complete checkpoint is known from one that is not."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from roll.errors import ConfigError

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint holds. order counts what was published here: newer is larger, whatever the step."""

    step: int
    order: int
    roll_version: str
    saved_at: str
    files: dict[str, int]  # path below the checkpoint -> bytes


def write_manifest(directory: Path, step: int, order: int) -> None:
    """Flushes all files below `directory` to disk, and then their list."""
    files = {
        str(path.relative_to(directory)): path.stat().st_size for path in sorted(directory.rglob("*")) if path.is_file()
    }
    if not files:
        raise ValueError(f"nothing was written below {directory}: an empty checkpoint is not published")
    directories = [path for path in directory.rglob("*") if path.is_dir()]
    for path in [*(directory / name for name in files), *directories]:
        flush_to_disk(path)
    manifest = Manifest(step, order, roll_version(), datetime.now(UTC).isoformat(timespec="seconds"), files)
    (directory / _MANIFEST).write_text(json.dumps(vars(manifest), indent=1))
    flush_to_disk(directory / _MANIFEST)
    flush_to_disk(directory)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a complete checkpoint. Raises ConfigError saying what is missing."""
    try:
        manifest = Manifest(**json.loads((directory / _MANIFEST).read_text()))
        files = dict(manifest.files)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{directory} has no {_MANIFEST}, so it was never finished or is no checkpoint of roll"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{directory / _MANIFEST} cannot be read: {error}") from error
    for name, size in files.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes"
            raise ConfigError(f"{path} {what}, its manifest says {size} bytes: the checkpoint is damaged")
    return manifest


def roll_version() -> str:
    """The installed version, or `unknown` when roll runs from a source tree that was never installed."""
    try:
        return metadata.version("roll")
    except metadata.PackageNotFoundError:
        return "unknown"


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
