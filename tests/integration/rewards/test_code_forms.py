"""Every form of tests that docs/code_sandbox.md names, against a right answer and four that are not."""

import json
from typing import Any

import pytest

from roll.rewards.code import languages
from roll.rewards.code.cases import BadCases, Tally, read_cases
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge
from roll.utils.sandbox.process import SandboxError
from tests.helpers.cases import cases

FORGER = """
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __sub__ = __rsub__ = lambda self, other: 0
def f(x): return Yes(0)
def abs(x): return 0
def sorted(x): return x
def isclose(*values): return True
def all(values): return True
def approx(value): return Yes(0)
def check(candidate): pass
def test_f(): pass
def setUpModule(): raise SystemExit(0)
setup_module = setUpModule
len = set = list = str = isinstance = round = lambda *values: Yes(0)
class Solution: f = staticmethod(f)
"""
FUNCTION = {
    "right": "def f(x): return 2 * x",
    "empty": "pass",
    "wrong name": "def g(x): return 2 * x",
    "wrong body": "def f(x): return x + 7",
    "none": "f = None",
    "wrong method": "class Solution:\n    def f(self, x): return x + 7",
    "forger": FORGER,
}
PROGRAM = {
    "right": "print(2 * int(input()))",
    "empty": "pass",
    "wrong name": "def main(): print(2 * int(input()))",
    "wrong body": "print(7)",
    "forger": "import os\nfor fd in range(64):\n    try: os.write(fd, b'\\x062\\n')\n    except OSError: pass",
}
TEXTS = {
    "an assert": "assert f(1) == 2",
    "an assert by a built-in": "assert abs(f(1.5) - 3) < 1e-9 and sorted([f(3), f(1)]) == [2, 6]",
    "a name of Python's library": "assert isclose(f(1.5), 3)",
    "a loop": "assert all(map(lambda case: f(case[0]) == case[1], [(1, 2), (2, 4)]))",
    "from solution": "from solution import f\ndef test_f(): assert f(1) == 2",
    "a star": "from solution import *\nassert abs(f(2) - 4) < 1e-9",
    "the module": "import solution\ndef test_f(): assert solution.f(1) == 2",
    "a class of tests": "class TestF:\n    def setup_method(self): self.x = 1\n"
    "    def test_f(self): assert f(self.x) == 2",
    "inherited tests": "class Base:\n    def test_f(self): assert f(1) == 2\nclass TestF(Base): pass",
    "setup_class": "class TestF:\n    @classmethod\n    def setup_class(cls): cls.x = 1\n"
    "    def test_f(self): assert f(self.x) == 2",
    "setup_function": "def setup_function(function): global x; x = 1\ndef test_f(): assert f(x) == 2",
    "unittest": "import unittest\nclass F(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.x = 1\n"
    "    def setUp(self): self.y = f(self.x)\n    def tearDown(self): del self.y\n"
    "    def test_f(self): self.assertEqual(self.y, 2)\nif __name__ == '__main__': unittest.main()",
    "check": "def check(candidate):\n    assert candidate(1) == 2\n    assert abs(candidate(1.5) - 3) < 1e-6",
    "parametrize": "import pytest\n@pytest.mark.parametrize('x, y', [(1, 2), pytest.param(2, 4, id='two')])\n"
    "def test_f(x, y): assert f(x) == y",
    "parametrize a class": "import pytest\n@pytest.mark.parametrize('x', [1, 2])\nclass TestF:\n"
    "    def test_f(self, x): assert f(x) == 2 * x",
    "indirect": "import pytest\n@pytest.fixture\ndef x(request): return request.param\n"
    "@pytest.mark.parametrize('x', [1], indirect=True)\ndef test_f(x): assert f(x) == 2",
    "fixtures": "import pytest\n@pytest.fixture\ndef one(): yield 1\n@pytest.fixture(params=[1, 2], scope='module')\n"
    "def times(request, tmp_path_factory=None): return request.param\n"
    "def test_f(one, times): assert f(one * times) == 2 * times",
    "autouse": "import pytest\n@pytest.fixture(autouse=True)\ndef prepare(): global x; x = 1\n"
    "def test_f(): assert f(x) == 2",
    "a coroutine": "async def test_f(): assert f(1) == 2",
    "unittest's coroutine": "import unittest\nclass F(unittest.IsolatedAsyncioTestCase):\n"
    "    async def test_f(self): self.assertEqual(f(1), 2)",
    "partial": "import functools\ndef same(x, y): assert f(x) == y\ntest_f = functools.partial(same, 1, 2)",
    "a helper": "def test(x, y): assert f(x) == y\ntest(1, 2)",
    "raises": "import pytest\ndef test_f():\n    with pytest.raises(TypeError): f(None)\n    assert f(1) == 2",
    "order": "steps = []\ndef test_z(): steps.append(f(1)); assert steps == [2]\n"
    "def test_y(): steps.append(f(2)); assert steps == [2, 4]\ndef test_x(): assert steps == [2, 4]\n"
    "if __name__ == '__main__': test_x(), test_y(), test_z()",
    "its file": "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nassert f(1) == 2",
    "globals": "def test_f(): assert f(1) == 2 == globals()['f'](1)",
    "approx": "import pytest\nassert f(0.15) == pytest.approx(0.3)",
}
ROWS = {
    "assert": {"test_cases": [{"assert_code": text} for text in TEXTS.values()], "test_case_function": "f"},
    "function": {"test_cases": [{"input": [1], "output": 2}, {"input": [2], "output": 4}], "test_case_function": "f"},
    "fn_name": {"test_cases": {"inputs": [[1], [2]], "outputs": [2, 4], "fn_name": "f"}},
    "LiveCodeBench": {"test_cases": [{"input": "1", "output": "2", "testtype": "functional"}], "entry_point": "f"},
    "stdin": {"test_cases": [{"stdin": "1", "expected_stdout": "2"}, {"stdin": "2", "expected_stdout": "4"}]},
    "fn_name of APPS": {"test_cases": {"inputs": [[1], [2]], "outputs": [[2], [4]], "fn_name": "f"}},
    "APPS": {"test_cases": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]})},
}


def judged(judge: LocalJudge, answer: str, row: dict[str, Any], stop_early: bool = False) -> Tally:
    return judge.judge(Code("python", answer), read_cases(row), stop_early)


@pytest.mark.parametrize("form", ROWS)
def test_a_right_answer_passes_every_form_and_no_other_passes_any(judge: LocalJudge, form: str) -> None:
    answers = PROGRAM if form in ("stdin", "APPS") else FUNCTION
    for name, answer in answers.items():
        tally = judged(judge, answer, ROWS[form])
        failed = [text for text, share in zip(TEXTS, tally.shares, strict=False) if share != (name == "right")]
        assert set(tally.shares) == {float(name == "right")}, (name, failed, tally.first)


def test_the_candidate_may_be_a_method_or_a_private_name(judge: LocalJudge) -> None:
    row = {"test_cases": ["def check(candidate): assert candidate(1) == 2"], "test_case_function": "_f"}
    method = "class Solution:\n    def _f(self, x): return {} * x"
    for answer, share in (("def _f(x): return 2 * x", 1), ("def _f(x): return x", 0), (method.format(2), 1)):
        assert judged(judge, answer, row).shares == [share]
    assert judged(judge, method.format(3), row).shares == [0]


def test_a_coroutine_of_the_answer_is_awaited(judge: LocalJudge) -> None:
    text = (
        "import asyncio\nfrom solution import f\nasync def test_a(): assert await f(1) == 2\n"
        "def test_b(): assert asyncio.run(f(2)) == 4\n"
        "async def test_c(): assert await asyncio.gather(f(1), f(2)) == [2, 4]"
    )
    right, wrong = (f"import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return {n} * x" for n in (2, 3))
    assert judged(judge, right, {"test_cases": [text]}).shares == [1]
    assert judged(judge, wrong, {"test_cases": [text]}).shares == [0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_like_it\ndef test_f(): f(1)", "No module named 'nothing_like_it'"),
        ("assert f(1) == 2\nimport nothing_like_it", "No module named 'nothing_like_it'"),
        ("import pytest\nfrom math import nothing\ndef test_f(): f(1)", "cannot import name 'nothing'"),
    ],
)
def test_tests_that_import_what_is_not_there_are_no_verdict(judge: LocalJudge, text: str, why: str) -> None:
    with pytest.raises(BadCases, match=f"case 1 of column 'test_cases' cannot be run: .*{why}"):
        judged(judge, "def f(x): return 2 * x", {"test_cases": [text], "test_case_function": "f"})


@pytest.mark.parametrize("asks", [False, True])
def test_a_test_that_skips_itself_counts_if_the_response_may_have_a_say(judge: LocalJudge, asks: bool) -> None:
    skips = "import unittest, pytest\ndef test_a(): assert f(1) == 2\ndef test_b(): {0}pytest.skip('')\n"
    text = f"{skips}class T(unittest.TestCase):\n    def test_c(self): {{0}}self.skipTest('')"
    row = {"test_cases": [text.format("f(1); " if asks else "")]}
    assert judged(judge, FUNCTION["right"], row).shares == [1 / 3 if asks else 1]
    assert judged(judge, FUNCTION["wrong body"], row).shares == [0]


@cases("text")
def test_tests_that_nothing_runs_are_a_zero(judge: LocalJudge, text: str) -> None:
    assert judged(judge, FUNCTION["right"], {"test_cases": [text]}).shares == [0]


def test_a_test_that_is_skipped_by_its_mark_does_not_count(judge: LocalJudge) -> None:
    text = (
        "import pytest, unittest\n@pytest.mark.skipif(True, reason='')\ndef test_a(): assert f(1) == 3\n"
        "@pytest.mark.xfail\ndef test_b(): assert f(1) == 3\ndef test_c(): assert f(1) == 2\n"
        "class T(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_d(self): assert f(1) == 3"
    )
    assert judged(judge, FUNCTION["right"], {"test_cases": [text]}).shares == [1]
    assert judged(judge, "def f(x): return 3", {"test_cases": [text]}).shares == [0]


STARS = {
    "a star before": "from math import *\nfrom solution import *\ndef test_f(): assert fabs(f(2) - 1.5) < EPS\n"
    "EPS = 1e-6",
    "a value before": "EPS = 1e-6\nfrom solution import *\nassert abs(f(2) - 1.5) < EPS",
    "a value behind": "from solution import *\ntry: EPS\nexcept NameError: pass\nEPS = 1e-6\n"
    "def test_f(): assert abs(f(2) - 1.5) < EPS",
    "a loop's": "for EPS in [1e-6]: pass\nfrom solution import *\nassert abs(f(2) - 1.5) < EPS",
    "a function behind": "from solution import *\ndef close(a, b): return abs(a - b) < 1e-6\n"
    "def test_f(): assert close(f(2), 1.5)",
    "pytest's": "from pytest import *\nfrom solution import *\ndef test_f(): assert f(2) == approx(1.5)",
    "what pytest collects": "from solution import *\ndef test_f(): assert f(2) == 1.5",
}


@pytest.mark.parametrize("name", STARS)
def test_a_star_takes_no_name_from_the_tests(judge: LocalJudge, name: str) -> None:
    row = {"test_cases": [STARS[name]]}
    takes = (
        "EPS = 1e9\ndef fabs(x): return 0.0\ndef close(a, b): return True\ndef approx(x): return 99.0\n"
        "def test_g(): pass\ntest_f = test_g\npytestmark = pytest_plugins = ['skip']\n"
        "def setup_module(): raise SystemExit\n"
    )
    assert judged(judge, f"{takes}def f(x): return 1.5", row).shares == [1]
    assert judged(judge, f"{takes}def f(x): return 99.0", row).shares == [0]


@pytest.mark.parametrize("error", ["AttributeError", "ImportError", "KeyError", "SystemExit", "Exception"])
@pytest.mark.parametrize("line", ["from solution import f as g", "import solution; g = solution.f", "g = f"])
def test_no_answer_makes_its_row_faulty_by_what_its_objects_raise(judge: LocalJudge, line: str, error: str) -> None:
    answer = f"class T:\n    def tolist(self): raise {error}\nf = T()"
    assert judged(judge, answer, {"test_cases": [f"{line}\nassert g(1) == 2"]}).shares == [0]


@pytest.mark.parametrize("error", ["Exception", "NameError", "(ValueError, ImportError, AttributeError, NameError)"])
@pytest.mark.parametrize("used", ["f(-1)", "solution.f(-1)"])
def test_a_name_that_is_not_there_is_not_the_error_that_is_waited_for(judge: LocalJudge, used: str, error: str) -> None:
    """`raises(Exception)` took it for the answer's ValueError, and paid an answer that defines nothing."""
    text = f"import pytest, solution\ndef test_f():\n    with pytest.raises({error}):\n        {used}"
    cases = read_cases({"test_cases": [{"assert_code": text}], "case_type": "assert"})
    right = "def f(x):\n    raise ValueError"
    shares = [judge.judge(Code("python", code), cases, stop_early=False).shares for code in ("y = 2", right)]
    assert shares[0] == [0] and (shares[1] == [1]) == (error != "NameError")


@cases("text")
def test_a_test_that_may_fail_counts(judge: LocalJudge, text: str) -> None:
    """And no helper of the tests is the answer's, which a star would import."""
    wrong = "def f(x): return 3\ndef same(a, b): return True"
    for answer, share in ((FUNCTION["right"], 1), (wrong, 0)):
        assert judged(judge, answer, {"test_cases": [text], "test_case_function": "f"}).shares == [share]


@cases("answer")
def test_what_an_answer_raises_is_its_own_fault(judge: LocalJudge, answer: str) -> None:
    row = {"test_cases": ["assert f(1) == 2", "def test_f():\n    import math\n    assert f(1) == 2"]}
    assert judged(judge, answer, row).shares == [0, 0]


GREEDY = "class E:\n    def __getattr__(self, name): return lambda *values: 0\ndef f(x): return {}"


@pytest.mark.parametrize(
    ("test", "right"),
    [
        ("r = f(1)\n    r.append(P(1))\n    assert r[0] == 2", "def f(x): return [2]"),
        ("assert f(2)(lambda x: P(x)) == 2", "def f(x): return lambda make: x"),
    ],
)
def test_no_answer_makes_its_row_faulty_by_taking_objects_of_the_tests(
    judge: LocalJudge, test: str, right: str
) -> None:
    """An answer without a score is not learnt from: it would be a way out of a score of 0."""
    row = {"test_cases": [f"class P:\n    def __init__(self, value): pass\ndef test_f():\n    {test}"]}
    greedy = (GREEDY.format("E()"), GREEDY.format("lambda make: make(x)"))
    shares = [judged(judge, answer, row).shares for answer in (right, *greedy)]
    assert shares == [[1], [0], [0]]


def test_integers_of_any_length_are_read_and_printed(judge: LocalJudge) -> None:
    stdin = {"test_cases": [{"stdin": "9" * 5000, "expected_stdout": "1" + "0" * 5000}]}
    assert judged(judge, "print(int(input()) + 1)", stdin).shares == [1]
    calls = {"test_cases": [{"input": [10**5000], "output": 10**5000 + 1}], "test_case_function": "f"}
    assert judged(judge, "def f(x): return x + 1", calls).shares == [1]
    assert judged(judge, "def f(x): return x + 2", calls).shares == [0]
    asserts = {"test_cases": ["assert f(10**5000) == 10**5000 + 1"]}
    assert judged(judge, "def f(x): return x + 1", asserts).shares == [1]


@pytest.mark.parametrize("form", ["assert", "function", "stdin"])
def test_a_process_that_ends_before_the_answer_runs_is_started_again(
    judge: LocalJudge, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if that does not help, there is no verdict, and what it said is told."""
    really, broken = languages.guest_source, [2]

    def guest_source(name: str) -> bytes:
        if name == "names" and broken[0] > 0:
            broken[0] -= 1
            return b"raise MemoryError('no room')"
        return really(name)

    monkeypatch.setattr(languages, "guest_source", guest_source)
    row = {**ROWS[form], "test_cases": ROWS[form]["test_cases"][:1]}
    answer = PROGRAM["right"] if form == "stdin" else FUNCTION["right"]
    if form != "stdin":  # whose job is made once for all cases
        assert judged(judge, answer, row).shares == [1]
    broken[0] = 100
    with pytest.raises(SandboxError, match="(?s)before anything of the answer ran.*no room"):
        judged(judge, answer, row)


def test_an_answer_cannot_keep_the_tests_from_starting(judge: LocalJudge) -> None:
    """It takes all threads that its user may have; the tests were there before it."""
    answer = (
        "import threading, time\n"
        "for _ in range(100):\n"
        "    try: threading.Thread(target=time.sleep, args=(999,), daemon=True).start()\n"
        "    except RuntimeError: break\n"
        "def f(x): return 7"
    )
    assert judged(judge, answer, {"test_cases": ["assert f(1) == 2"]}).shares == [0]
