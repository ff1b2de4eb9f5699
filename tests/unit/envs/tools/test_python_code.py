"""The tool python_code: what a program prints, what its faults look like, and that it sees nothing of the machine."""

from __future__ import annotations

import pytest

from roll.envs.tools.base import ToolError
from roll.envs.tools.python_code import PythonCodeTool
from roll.errors import EnvError

try:
    TOOL = PythonCodeTool(timeout=20)
except EnvError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_programs_stand_between_tags_or_in_a_block() -> None:
    assert TOOL.find("so <python>\nprint(1)\n</python> and") == (3, "print(1)")
    assert TOOL.find("```python\nprint(2)\n```") == (0, "print(2)")
    assert TOOL.find("```\nprint(2)\n```") is None


def test_what_a_program_prints_is_the_result() -> None:
    assert TOOL.run("import fractions\nprint(fractions.Fraction(1, 3) + 1)") == "Code execution result: 4/3"


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("open('/etc/passwd')", "No such file or directory"),
        ("import socket; socket.socket()", "OSError"),
        ("import sys; sys.exit(3)", "the program ended with code 3"),
        ("print('x' * 10**6)", "the program printed more than 65536 bytes"),
        ("bytearray(10**9)", "MemoryError"),
    ],
)
def test_what_goes_wrong_in_a_program_is_told_to_the_policy(program: str, text: str) -> None:
    with pytest.raises(ToolError, match=text):
        TOOL.run(program)


def test_a_program_without_end_is_stopped() -> None:
    with pytest.raises(ToolError, match="the program took longer than 1 s"):
        PythonCodeTool(timeout=1).run("while True: pass")


def test_of_an_error_the_last_line_may_be_enough() -> None:
    with pytest.raises(ToolError, match="^ValueError: no$"):
        PythonCodeTool(timeout=20, keep_error_last_line=True).run("raise ValueError('no')")
