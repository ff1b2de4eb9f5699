"""The list of a checkpoint's files, by which one that is complete and undamaged is known."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from roll.errors import ConfigError
from roll.utils.files import read_object
from roll.utils.version import VERSION

_MANIFEST = "manifest.json"
_OWN_DIGEST = "manifest_digest"
_CHUNK_BYTES = 1 << 20
_NUM_THREADS = 8  # more than cores: on a network file system they wait most of the time


class Manifest(BaseModel):
    """Manifest of a complete checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    step: int
    order: int
    roll_version: str
    saved_at: str
    files: dict[str, int]  # path below the checkpoint -> bytes
    digests: dict[str, str]  # the same paths -> XXH3-128 in hex

    @model_validator(mode="after")
    def _each_file_has_a_digest(self) -> "Manifest":
        if self.digests.keys() != self.files.keys():
            raise ValueError("files and digests do not name the same files")
        return self


def write_manifest(directory: Path, step: int, order: int) -> None:
    """Flushes all files below `directory` to disk, and then their list with sizes and digests."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    if not paths:
        raise ValueError(f"nothing was written below {directory}: an empty checkpoint is not published")
    directories = [path for path in directory.rglob("*") if path.is_dir()]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        flushed = threads.map(flush_to_disk, [*paths, *directories])
        digests = list(threads.map(digest_of, paths))  # from the page cache, while the disk is busy
        list(flushed)
    names = [str(path.relative_to(directory)) for path in paths]
    manifest = Manifest(
        step=step,
        order=order,
        roll_version=VERSION,
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files={name: path.stat().st_size for name, path in zip(names, paths, strict=True)},
        digests=dict(zip(names, digests, strict=True)),
    )
    value = manifest.model_dump()
    (directory / _MANIFEST).write_text(json.dumps({**value, _OWN_DIGEST: _manifest_digest(value)}, indent=1))
    flush_to_disk(directory / _MANIFEST)
    flush_to_disk(directory)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there, in their sizes. Raises ConfigError."""
    try:
        value = read_object(directory / _MANIFEST)
        digest = value.pop(_OWN_DIGEST, None)
        manifest = Manifest.model_validate(value)
        if digest != _manifest_digest(value):
            raise ValueError(f"it does not agree with its {_OWN_DIGEST}")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{directory} has no {_MANIFEST}, so it is an unfinished checkpoint, or none of roll"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory / _MANIFEST} cannot be read, so the checkpoint is damaged: {reason(error)}"
        ) from error
    for name, size in manifest.files.items():
        what = _wrong_size(directory / name, size)
        if what:
            raise ConfigError(f"{directory / name} {what}, but its manifest says {size}: the checkpoint is damaged")
    return manifest


def manifest_digest(directory: Path) -> str:
    """One text that no other checkpoint has: of all its files, and of when it was saved."""
    return _manifest_digest(read_manifest(directory).model_dump())


def check_digests(directory: Path, manifest: Manifest) -> None:
    """Reads all files. Raises ConfigError with every one that is not as it was written."""

    def problem(name: str) -> str | None:
        try:
            same = digest_of(directory / name) == manifest.digests[name]
        except OSError as error:
            return f"{directory / name} cannot be read ({error.strerror}): the checkpoint is damaged"
        return (
            None if same else f"{directory / name} has changed since it was written (digest): the checkpoint is damaged"
        )

    largest_first = sorted(manifest.digests, key=lambda name: -manifest.files[name])
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        problems = sorted(filter(None, threads.map(problem, largest_first)))
    if problems:
        raise ConfigError(*problems)


def digest_of(path: Path) -> str:
    """XXH3-128 of a file. It tells damage, not forgery: who can change a file here can change its manifest. Read, not
    mapped into memory, where a disk that fails would kill the process."""
    digest, buffer = xxhash.xxh3_128(), bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def reason(error: Exception) -> str:
    """An error of reading a state file, in one line."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()[:3])
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest_digest(value: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def _wrong_size(path: Path, size: int) -> str | None:
    try:
        actual = path.stat().st_size if path.is_file() else None
    except OSError as error:
        return f"cannot be read ({reason(error)})"
    if actual == size:
        return None
    return "is missing" if actual is None else f"has {actual} bytes"
