"""Writing to a disk that may be full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roll.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEXTS = tuple(os.strerror(number).lower() for number in _FULL)
_FREE_BYTES = 1 << 20  # with less, whatever else a writer says is a consequence


@contextmanager
def naming_full_disk(directory: Path) -> Iterator[None]:
    """What fails below this directory for want of space raises StorageError that says so: a library may hide it
    (torch.save: "unexpected pos 138944 vs 138832")."""
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
    found = os.statvfs(_existing(directory))
    return found.f_bavail * found.f_frsize < _FREE_BYTES or (found.f_files > 0 and found.f_favail == 0)


def _free(directory: Path) -> str:
    found = os.statvfs(_existing(directory))
    inodes = ", no inodes" if found.f_files > 0 and found.f_favail == 0 else ""
    return f"{found.f_bavail * found.f_frsize / 1e6:.1f} MB of {found.f_blocks * found.f_frsize / 1e6:.0f} MB{inodes}"


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())
