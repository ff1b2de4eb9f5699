"""Lines of JSON that a process in the sandbox sends and gets, each within a time.

What a line costs here is limited whoever wrote it: its bytes, and its lists and mappings, which take twenty times the
bytes that they are written in.
"""

import json
import os
import select
import time
from typing import Any

CHUNK = 65536
MOST_LISTS = 200_000


class Ended(Exception):
    """The process has closed its side, or speaks no JSON of a sane size; the text says which, and is empty for the
    first."""


class OutOfTime(Exception):
    """Error: the process did not answer in time."""


class Lines:
    """`longest`: bytes of a line that is received."""

    def __init__(self, reader: int, writer: int | None = None, longest: int = 2**20):
        self._reader, self._writer, self._rest, self._longest = reader, writer, b"", longest
        for fd in (reader, writer):
            if fd is not None:
                os.set_blocking(fd, False)

    def send(self, message: object, deadline: float) -> None:
        assert self._writer is not None
        remaining = memoryview(json.dumps(message).encode() + b"\n")
        while remaining:
            _wait(self._writer, select.POLLOUT, deadline)
            try:
                remaining = remaining[os.write(self._writer, remaining[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Ended from None

    def receive(self, deadline: float) -> Any:
        line = self._line(deadline)
        if line.count(b"[") + line.count(b"{") > MOST_LISTS:
            raise Ended(f"it sent more than {MOST_LISTS} lists")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise Ended(f"it sent no message: {line[:200].decode(errors='replace')}") from None

    def _line(self, deadline: float) -> bytes:
        """The next one; a long one without copying it at every piece."""
        pieces, length = [self._rest], len(self._rest)
        while b"\n" not in pieces[-1]:
            if length > self._longest:
                raise Ended(f"it sent a line of more than {self._longest} bytes")
            _wait(self._reader, select.POLLIN, deadline)
            pieces.append(os.read(self._reader, CHUNK))
            length += len(pieces[-1])
            if not pieces[-1]:
                raise Ended(b"".join(pieces)[-500:].decode(errors="replace").strip())
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left_s = deadline - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise OutOfTime
