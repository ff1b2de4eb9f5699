"""Programs in answers, and the processes that judge them."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from roll.rewards.code.cases import Tally
from roll.rewards.code.languages import Code, code_in, fences_of
from roll.rewards.code.local import Starts
from roll.utils.sandbox.lines import MOST_LISTS, Ended, Lines
from roll.utils.sandbox.process import SandboxError

BOTH = fences_of(("python", "cpp"))
PY, CPP = (lambda text: Code("python", text)), (lambda text: Code("cpp", text))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\nx = 1\n```", PY("x = 1\n")),
        ("So:\n```python\nx = 1\n```\nDone.", PY("x = 1\n")),
        ("```Python3\nx\n```", PY("x\n")),
        ("```cpp\nint x;\n```", CPP("int x;\n")),
        ("```python\na\n```\n```python\nb\n```", PY("b\n")),
        ("```python\na\n```\n```cpp\nb\n```", CPP("b\n")),
        ("```python\na\n```\nOutput:\n```json\n5\n```", PY("a\n")),
        ("```\na\n```\n```python\nb\n```", PY("b\n")),
        ("<answer>```python\nx\n```</answer>", PY("x\n")),
        ("~~~python\nx\n~~~", PY("x\n")),
        ("````python\n```\nx\n````", PY("```\nx\n")),
        ("1. so\n   ```python\n   def f():\n       pass\n   ```", PY("def f():\n    pass\n")),
        ("<think>```python\na\n```</think>```python\nb\n```", PY("b\n")),
        ("<think>```python\na\n```</think>no", None),
        ("<think>```python\na\n```", None),
        ("Code:```python\nx\n```", PY("x\n")),
        ("Here is the code: ```python\nx\n```", PY("x\n")),
        ("```{.python .numberLines}\nx\n```", PY("x\n")),
        ("```language-c++\nx\n```", CPP("x\n")),
        ("```python:main.py\nx\n```", PY("x\n")),
        ("```python-repl\n>>> x\n```", None),
        ("- ```python\n  def f():\n      pass\n  ```", PY("def f():\n    pass\n")),
        ("The ``` mark opens a block.\n```python\nx\n```", PY("x\n")),
        ("```python\nx```", PY("x\n")),
        ("```python\nx\n``` This is the program.", PY("x\n")),
        ("Here is the code ```python\nx\n```\nIt prints:\n```\n1\n```", PY("x\n")),
        ("```python\ns = '''a\n   \n'''\n```", PY("s = '''a\n   \n'''\n")),
        ("```python\nx = 1", None),
        ("```python\na\n```\n```python\nb", PY("a\n")),
        ("```python\n\n```", None),
        ("```rust\nx\n```", None),
        ("x = 1", None),
        ("", None),
    ],
)
def test_the_last_block_of_a_known_language_counts(answer: str, code: Code | None) -> None:
    assert code_in(answer, BOTH) == code


def test_without_a_fence_or_in_another_language_there_is_no_code() -> None:
    assert code_in("x = 1", BOTH) is None
    assert code_in("x = 1", BOTH, plain="python") == PY("x = 1\n")
    assert code_in("```text\nx\n```", BOTH, plain="python") is None
    assert code_in("```python\nx", BOTH, plain="python") is None
    assert code_in("```cpp\nint x;\n```", fences_of(("python",))) is None


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


def test_an_end_has_the_last_words(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"half a line")
    os.close(pipe[1])
    with pytest.raises(Ended, match="half a line"):
        Lines(pipe[0]).receive(time.monotonic() + 300)


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


def begun() -> Starts:
    starts = Starts()
    starts.start()
    starts.begun()
    return starts


def test_ends_before_and_while_the_answer_is_loaded_are_asked_once_more() -> None:
    starts, tally = Starts(), Tally(2)
    for _ in range(2):
        starts.start()
        assert starts.ended(tally, "no memory") and tally.shares == []
    with pytest.raises(SandboxError, match="before anything of the answer ran: no memory"):
        starts.ended(tally, "no memory")
    starts, tally = Starts(), Tally(9)
    for _ in range(5):
        starts.start()
        assert starts.ended(tally, "no memory")
        starts.begun()
    starts, tally = begun(), Tally(2)
    assert starts.ended(tally, "code 0") and tally.compiled
    starts.start()
    starts.begun()
    assert starts.ended(tally, "code 0")
    assert (tally.shares, tally.compiled) == ([0, 0], False)


def test_time_counts_for_the_answer_alone() -> None:
    starts, tally = begun(), Tally(2)
    starts.loaded()
    assert not starts.ended(tally, "code 0") and not starts.out_of_time(tally, budget_is_spent=False)
    assert tally.shares == []
    starts, tally = begun(), Tally(2)
    for _ in range(5):
        starts.start()
        assert not starts.out_of_time(tally, budget_is_spent=True)
    starts.check_begun()
    with pytest.raises(SandboxError, match="did not start within total_time_s"):
        Starts().check_begun()
    starts, tally = begun(), Tally(2)
    assert starts.out_of_time(tally, budget_is_spent=False)
    assert (tally.shares, tally.compiled, tally.out_of_time) == ([0, 0], False, 1)
