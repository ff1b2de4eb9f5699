"""The tool python_code: what a program prints, what its faults look like, and that it sees nothing of the machine."""

from __future__ import annotations

import pytest

from roll.envs.tools.base import ToolError
from roll.envs.tools.python_code import PythonCodeTool
from roll.errors import EnvError
from tests.helpers.cases import cases

try:
    TOOL = PythonCodeTool(timeout=20)
except EnvError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_programs_are_found_run_and_stopped() -> None:
    assert TOOL.find("so <python>\nprint(1)\n</python> and") == (3, "print(1)")
    assert TOOL.find("```python\nprint(2)\n```") == (0, "print(2)")
    assert TOOL.find("```\nprint(2)\n```") is None
    assert TOOL.run("import fractions\nprint(fractions.Fraction(1, 3) + 1)") == "Code execution result: 4/3"
    with pytest.raises(ToolError, match="the program took longer than 1 s"):
        PythonCodeTool(timeout=1).run("while True: pass")
    with pytest.raises(ToolError, match="^ValueError: no$"):
        PythonCodeTool(timeout=20, keep_error_last_line=True).run("raise ValueError('no')")


@cases("program, text")
def test_what_goes_wrong_in_a_program_is_told_to_the_policy(program: str, text: str) -> None:
    with pytest.raises(ToolError, match=text):
        TOOL.run(program)
