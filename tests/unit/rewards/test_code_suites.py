"""Texts of tests, read without running them: one that cannot judge an answer is refused with its reason."""

import pytest

from roll.rewards.code.suites import problem_of_suite, read_suite
from tests.helpers.cases import cases

BAD = {
    "# nothing": "holds no test that runs",
    "x = f(1": "is no Python 3",
    "f\x00": "is no Python",
    "import math": "holds no test that runs",
    "if __name__ == '__main__':\n    assert f(1) == 2": "holds no test that runs",
    "import pytest\n@pytest.mark.skip\ndef test_a(): assert f(1) == 2": "holds no test that runs",
    "import sys\nassert f(1) == 2\nsys.exit()\ndef test_a(): f(2)": "no test that runs to its end: line 3 ends it",
    "class SortTests:\n    def test_a(self): assert f(1) == 2": "holds no test that runs",
    "def check(candidate): assert candidate(1) == 2": "name it in column 'test_case_function'",
    "assert True": "uses nothing of the answer",
    "assert abs(-1) == 1": "uses nothing of the answer",
    "import math\ndef test_a(): assert math.gcd(4, 2) == 2": "uses nothing of the answer",
    "def f(x): return x\ndef test_a(): assert f(1) == 1": "uses nothing of the answer",
    "def test_a(capsys): f(1)": "the fixture capsys, which does not reach the answer",
    "from unittest.mock import patch\ndef test_a():\n    with patch('solution.g'): f(1)": "uses patch, which does not",
}


@cases("text")
def test_a_text_that_can_judge(text: str) -> None:
    assert problem_of_suite(text, None) is None


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_cannot_judge_is_refused_with_the_reason(text: str) -> None:
    assert BAD[text] in str(problem_of_suite(text, None))


@pytest.mark.parametrize("text", ["def check(candidate): assert candidate(1) == 2", "assert sum([1]) == 1"])
def test_a_name_of_the_function_makes_a_test_of_it(text: str) -> None:
    assert problem_of_suite(text, "sum") is None


@cases("text, function, own")
def test_names_of_python_are_the_answer_s_only_where_nothing_else_is(
    text: str, function: str | None, own: list[str]
) -> None:
    assert [*read_suite(text, function).local_names] == own
