"""One explorer and one trainer at a buffer: each takes its seat for as long as it lives."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from roll.errors import StorageError


class Seat:
    """A lock on `<experience.dir>/<mode>.lock`, which the kernel takes back when the process ends, however it ends.
    Two writers would give one number twice, and two readers release each other's groups."""

    def __init__(self, directory: Path, mode: str):
        """Raises StorageError where another process has it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (directory / f"{mode}.lock").open("a")
        except OSError as error:
            raise StorageError(f"experience.dir: {directory} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise StorageError(
                f"experience.dir: another process with mode: {mode} is running in {directory}. Wait for its end, or "
                "give this run another experience.dir."
            ) from error
        except OSError:  # a file system without locks
            pass

    def leave(self) -> None:
        self._file.close()
