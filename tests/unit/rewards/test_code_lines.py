"""Lines from a process that nobody trusts: what one may cost here is limited."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from roll.utils.sandbox.lines import MOST_LISTS, Ended, Lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def received(pipe: tuple[int, int], text: bytes, longest: int = 2**20) -> list[object]:
    """All messages of the text. Raises Ended."""

    def write() -> None:
        left = memoryview(text)
        while left:
            try:
                left = left[os.write(pipe[1], left) :]
            except BrokenPipeError:
                break
        os.close(pipe[1])

    threading.Thread(target=write, daemon=True).start()
    lines, found = Lines(pipe[0], longest=longest), []
    for _ in range(text.count(b"\n")):
        found.append(lines.receive(time.monotonic() + 300))
    return found


def test_lines_of_any_number_and_length_arrive(pipe: tuple[int, int]) -> None:
    text = b'["a"]\n[2]\n"' + b"x" * 900_000 + b'"\n[]\n'
    assert received(pipe, text) == [["a"], [2], "x" * 900_000, []]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'"' + b"x" * 3_000_000 + b'"\n', "a line of more than 1048576 bytes"),
        (b"[" + b"[]," * 300_000 + b"0]\n", f"more than {MOST_LISTS} lists"),
        (b"[" + b"{}," * 300_000 + b"0]\n", f"more than {MOST_LISTS} lists"),
        (b"[" * 100_000 + b"\n", "no message"),
        (b"9" * 5000 + b"\n", "no message"),  # it would take long to read one of a million digits
        (b"\xff\n", "no message"),
        (b"Traceback: no memory\n", "no message: Traceback: no memory"),
    ],
)
def test_what_costs_too_much_or_is_no_json_ends_the_talk(pipe: tuple[int, int], text: bytes, why: str) -> None:
    with pytest.raises(Ended, match=why):
        received(pipe, text)


def test_an_end_has_the_last_words(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"half a line")
    os.close(pipe[1])
    with pytest.raises(Ended, match="half a line"):
        Lines(pipe[0]).receive(time.monotonic() + 300)
