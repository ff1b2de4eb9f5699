"""Looking at a path that a person wrote: it may lead nowhere, be no path at all, or lie where nobody may look."""

import errno
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Literal

from roll.errors import StorageError

Kind = Literal["file", "directory", "device", "absent", "hidden", "impossible"]


@dataclass(frozen=True)
class PathInfo:
    """State of a path: a regular file, a directory, something else that can be opened (device), nothing, something that
    permissions hide, or a text that cannot be a path. `why` says so in words."""

    path: Path
    kind: Kind
    why: str

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"

    @property
    def exists(self) -> bool:
        return self.kind in ("file", "directory", "device")


def path_info(path: Path | str) -> PathInfo:
    """Look up what is at a path, `~` included. Never raises for any text."""
    path = Path(path)
    try:
        path = path.expanduser()
    except RuntimeError:
        return PathInfo(path, "impossible", f"there is no user {path.parts[0][1:]}, so {path} is no path")
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return PathInfo(path, "absent", f"{path} does not exist")
    except PermissionError:
        return PathInfo(path, "hidden", f"no permission to look at {path}")
    except (OSError, ValueError) as error:  # a name that is too long, links in a circle, a NUL, half a character
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return PathInfo(path, "impossible", f"{_short(path)} is no path ({reason[:1].lower()}{reason[1:]})")
    if stat.S_ISREG(mode):
        return PathInfo(path, "file", f"{path} is a file")
    if stat.S_ISDIR(mode):
        return PathInfo(path, "directory", f"{path} is a directory")
    return PathInfo(path, "device", f"{path} is a device, a pipe or a socket")


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return the path with `~` or `~user` replaced by the home directory; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))


def _short(path: Path) -> str:
    text = ascii(str(path))[1:-1]
    return text if len(text) <= 100 else f"{text[:97]}..."


# Writing to a disk that may be full.


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: if the disk is full, what was there stays. A text is written as UTF-8, and a
    file keeps its permissions. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    if path_info(path).kind == "device":  # nothing to keep, as /dev/stdout
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))  # a link stays one
    unfinished = path.with_name(f".{uuid.uuid4().hex[:12]}.unfinished")
    try:
        unfinished.touch()
        with suppress(FileNotFoundError):
            shutil.copymode(path, unfinished)
        unfinished.write_bytes(data)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEXTS = tuple(os.strerror(number).lower() for number in _FULL)
_FREE_BYTES = 1 << 20  # with less, whatever else a writer says is a consequence


@contextmanager
def naming_full_disk(directory: Path) -> Iterator[None]:
    """Turn any failure inside that is due to a full disk below this directory into StorageError that says so: a library
    may hide the cause (torch.save: "unexpected pos 138944 vs 138832")."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError) or not (_says_full(error) or _is_full(directory)):
            raise
        raise StorageError(
            f"no space left in {directory} ({_free(directory)}). Free some, or set another output_dir; "
            f"max_ckpt_to_keep limits how many checkpoints stay. It failed with {type(error).__name__}: {error}"
        ) from error


def _says_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if any(text in str(error).lower() for text in _TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_full(directory: Path) -> bool:
    volume = os.statvfs(_existing(directory))
    return volume.f_bavail * volume.f_frsize < _FREE_BYTES or (volume.f_files > 0 and volume.f_favail == 0)


def _free(directory: Path) -> str:
    volume = os.statvfs(_existing(directory))
    inodes = ", no inodes" if volume.f_files > 0 and volume.f_favail == 0 else ""
    return (
        f"{volume.f_bavail * volume.f_frsize / 1e6:.1f} MB of {volume.f_blocks * volume.f_frsize / 1e6:.0f} MB{inodes}"
    )


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())


# Names of the Hugging Face hub.

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def folder_hint(name: str) -> str:
    """A sentence with the folders here whose names are near, or nothing."""
    try:
        folders = [entry.name for entry in os.scandir() if entry.is_dir()]
    except OSError:
        return ""
    near = get_close_matches(name, folders, n=3, cutoff=0.6)
    return f" Did you mean the folder {' or '.join(f'./{each}' for each in near)}?" if near else ""


def is_hub_id(name: str) -> bool:
    """True for `name` or `owner/name` that is no path of this machine (./model, or output/model when output/
    exists)."""
    return _ID.fullmatch(name) is not None and not path_info(name.partition("/")[0]).exists


# Reading files in folders that others write to.


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading. OSError for anything else: opening a pipe would wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


# Reading JSON files that something may have happened to.


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a regular file. OSError if it cannot be read, ValueError when it holds anything else."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is no regular file")
    try:
        with open_regular(path) as file:
            value = json.loads(file.read())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}, not an object")
    return value
