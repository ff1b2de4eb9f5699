"""Lines of JSON that a process in the sandbox sends and gets, each within a time."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

CHUNK = 65536
LONGEST_LINE = 32 * 2**20


class Ended(Exception):
    """The process has closed its side, or speaks no JSON."""


class OutOfTime(Exception):
    """It did not answer in time."""


class Lines:
    def __init__(self, reader: int, writer: int | None = None):
        self._reader, self._writer, self._rest = reader, writer, b""
        for fd in (reader, writer):
            if fd is not None:
                os.set_blocking(fd, False)

    def send(self, message: object, deadline: float) -> None:
        assert self._writer is not None
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            _wait(self._writer, select.POLLOUT, deadline)
            try:
                left = left[os.write(self._writer, left[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Ended from None

    def receive(self, deadline: float) -> Any:
        while b"\n" not in self._rest:
            _wait(self._reader, select.POLLIN, deadline)
            chunk = os.read(self._reader, CHUNK)
            if not chunk or len(self._rest) > LONGEST_LINE:
                raise Ended
            self._rest = self._rest + chunk if b"\n" in chunk else self._gather(chunk, deadline)
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise Ended from None

    def _gather(self, chunk: bytes, deadline: float) -> bytes:
        """A long line, without copying it at every piece."""
        pieces, length = [self._rest, chunk], len(self._rest) + len(chunk)
        while b"\n" not in pieces[-1]:
            _wait(self._reader, select.POLLIN, deadline)
            pieces.append(os.read(self._reader, CHUNK))
            length += len(pieces[-1])
            if not pieces[-1] or length > LONGEST_LINE:
                raise Ended
        return b"".join(pieces)


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left_s = deadline - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise OutOfTime
