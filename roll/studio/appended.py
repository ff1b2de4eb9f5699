"""Files that a running program writes at their end, read as they grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from roll.utils.regular_files import open_regular


class AppendedLines:
    """Whole lines of a file, each once. A file that was replaced or cut, as a resumed run does, is read anew."""

    def __init__(self, path: Path, most_bytes: int | None = None):
        """`most_bytes`: of the end of what is there at first; None: all of it."""
        self.path = path
        self._most_bytes = most_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether the lines of before no longer count, and the new ones."""
        try:
            with open_regular(self.path) as file:
                return self._new_lines(file)
        except OSError:  # not there yet, or no more, or no file of lines
            is_anew = self._file is not None
            self._file = None
            return is_anew, []

    def _new_lines(self, file: BinaryIO) -> tuple[bool, list[bytes]]:
        status = os.fstat(file.fileno())
        is_anew = self._file != (status.st_dev, status.st_ino) or status.st_size < self._offset
        if is_anew:
            start = 0 if self._most_bytes is None else max(0, status.st_size - self._most_bytes)
            self._file, self._offset, self._rest = (status.st_dev, status.st_ino), start, b""
            if start:
                file.seek(start - 1)
                self._offset = start - 1 + len(file.readline())  # the line that is cut
        file.seek(self._offset)
        data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return is_anew, lines
