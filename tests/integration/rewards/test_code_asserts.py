"""Verdicts on asserts and test functions, one by one: many share a start of the sandbox, none its outcome."""

from dataclasses import replace

import pytest

from roll.rewards.code.cases import BadCases, Cases, Tally
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge
from tests.helpers.cases import cases

ANSWER = '''
import builtins, decimal, enum, fractions, datetime
from dataclasses import dataclass

def same(x): return x
def double(x): return x * 2
def pair(a, b=5, *rest, key=None): return (a, b, rest, key)
def fail(kind="ValueError", text="bad"): raise getattr(builtins, kind)(text)
def count(n):
    for i in range(n): yield i
def endless():
    i = 0
    while True:
        yield i
        i += 1
def sort_in_place(values): values.sort()
def clear(values): values.clear()
def add_key(values): values["new"] = 1
def add_item(values): values.add(9)
def apply(function, *values): return [function(value) for value in values]
def guarded(function):
    try: return function()
    except ZeroDivisionError: return "caught"
def kinds():
    return {"t": (1, 2), "s": {1, 2}, "f": frozenset({3}), "b": b"x", "c": 1j, "n": None, "r": range(3), 5: [1.5]}
def money(): return decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2024, 2, 29)
def counted(text): return Counter(text)
def typed(values: List[int]) -> Optional[int]: return max(values, default=None)
def gcd(a, b): return 42
limit = 7
class Oops(ValueError): pass
def oops(): raise Oops("own")
class Stack:
    made = 0
    def __init__(self, *items): self.items = list(items); Stack.made += 1
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, index): return self.items[index]
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __add__(self, other): return Stack(*self.items, *other.items)
    def __lt__(self, other): return len(self) < len(other)
    def __repr__(self): return f"Stack({self.items})"
    def __hash__(self): return 3
    def __enter__(self): return self
    def __exit__(self, *error): self.items = ["closed"]
@dataclass
class Point:
    x: int
    y: int = 0
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
class Color(enum.Enum):
    RED = 1
class Yes:
    """Agrees with everything."""
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __abs__ = __sub__
    def __bool__(self): return True
    def __hash__(self): return 0
def yes(*args): return Yes()
class Liar(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __sub__(self, other): return 0
    def __lt__(self, other): return True
def liar(*args): return Liar(3)
class LyingList(list):
    def __eq__(self, other): return True
def lying_list(*args): return LyingList([1])
class LyingText(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def lying_text(*args): return LyingText("a")
def abs(value): return 0
def sorted(values): return [1, 2, 3]
def all(values): return True
def isinstance_of(value): return isinstance(value, int)
'''

PASS = """
assert double(2) == 4
assert double([1]) == [1, 1]
assert double(x=3) == 6
assert same(None) is None
assert same(True) is True
assert same(2**100) == 2**100
assert same("\\u00e9\\ud800") == "\\u00e9\\ud800"
assert same((1, (2, [3]))) == (1, (2, [3]))
assert same({1: {2: {3}}}) == {1: {2: {3}}}
assert not same([])
assert type(same((1,))) is tuple
assert abs(double(1.5) - 3) < 1e-9
assert math.isclose(double(0.1), 0.2)
assert [double(i) for i in range(3)] == [0, 2, 4]
assert pair(1) == (1, 5, (), None)
assert pair(1, 2, 3, key="k") == (1, 2, (3,), "k")
assert list(count(3)) == [0, 1, 2]
from itertools import islice; assert list(islice(endless(), 3)) == [0, 1, 2]
values = [3, 1, 2]; sort_in_place(values); assert values == [1, 2, 3]
values = {1}; add_item(values); assert values == {1, 9}
assert apply(lambda x: x + 1, 1, 2) == [2, 3]
assert guarded(lambda: 1 / 0) == "caught"
assert kinds()["t"] == (1, 2) and kinds()["s"] == {1, 2} and kinds()["b"] == b"x" and kinds()[5] == [1.5]
assert money()[0] + 1 == __import__("decimal").Decimal("2.10")
assert counted("aab") == {"a": 2, "b": 1}
assert typed([1, 5]) == 5 and typed([]) is None
assert limit == 7
stack = Stack(1); stack.push(2); assert stack.pop() == 2 and len(stack) == 1
assert Stack(1, 2) == Stack(1, 2)
assert list(Stack(1, 2)) == [1, 2]
assert Stack(1, 2)[0] == 1
assert 2 in Stack(1, 2)
assert (Stack(1) + Stack(2)).items == [1, 2]
assert Stack() < Stack(1)
assert f"{Stack(1)}" == "Stack([1])"
assert hash(Stack()) == 3
assert isinstance(Stack(), Stack)
assert not isinstance(Point(1), Stack)
with Stack() as stack: pass\\nassert stack.items == ["closed"]
stack = Stack(); stack.items = [5]; assert stack.pop() == 5
assert Point(1) == Point(1) and Point(1) != Point(2)
assert Node(1, Node(2)).next.value == 2
assert Color.RED.value == 1 and Color.RED == Color.RED
assert hasattr(Point(1), "x") and not hasattr(Point(1), "z")
assert callable(double)
from solution import double as twice; assert twice(2) == 4
from solution import *; assert double(2) == 4
from solution import gcd; assert gcd(4, 2) == 42
try: fail("KeyError", "k")\\nexcept KeyError: pass\\nelse: assert False
try: oops()\\nexcept Oops as error: assert str(error) == "own"
import pytest\\nwith pytest.raises(ValueError, match="own"): oops()
import pytest\\nassert double(0.15) == pytest.approx(0.3)
def test_a(): assert double(1) == 2\\ndef test_b(): assert double(2) == 4
class TestDouble:\\n    def test_a(self): assert double(1) == 2
import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): self.assertEqual(double(1), 2)
import pytest\\n@pytest.mark.parametrize("x,y", [(1, 2), (2, 4)])\\ndef test_a(x, y): assert double(x) == y
def check(candidate): assert candidate(2) == 4
""".strip().splitlines()

FAIL = """
assert double(2) == 5
assert same(1) is True
assert same((1,)) == [1]
assert nobody(1) == 1
fail("SystemExit")
fail("StopIteration")
assert abs(double(1.5) - 4) < 1e-9
assert sorted(same([3, 1])) == [1, 2, 3]
assert all(same([0]))
values = [3, 1]; same(values); assert values == [1, 3]
assert Stack(1) == [1]
assert gcd(4, 2) == 2
from solution import nobody; assert True
import pytest\\nwith pytest.raises(ValueError): double(1)
import pytest\\nassert double(1) == pytest.approx(3)
def test_a(): assert double(1) == 3
import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): self.assertEqual(double(1), 3)
def check(candidate): assert candidate(2) == 5
assert yes() == 4
assert [yes()] == [4]
assert {"a": yes()} == {"a": 4}
assert not yes() != 4
assert 4 > yes()
assert abs(yes() - 4) < 1e-6
assert yes() in [4, 5]
assert yes() in {4: 1}
assert math.isclose(yes(), 4)
assert max(yes(), 4) == 4
import pytest\\nassert yes() == pytest.approx(4)
import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): self.assertEqual(yes(), 4)
import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): self.assertAlmostEqual(yes(), 4)
assert liar() == 4
assert lying_list() == [2]
assert lying_text() == "b"
""".strip().splitlines()


def judged(judge: LocalJudge, answer: str, asserts: list[str], function: str | None = None) -> Tally:
    texts = tuple(text.replace("\\n", "\n") for text in asserts)
    return judge.judge(Code("python", answer), Cases("assert", function, asserts=texts), stop_early=False)


@pytest.fixture(scope="module")
def shares(judge: LocalJudge) -> dict[str, float]:
    texts = [*PASS, *FAIL]
    return dict(zip(texts, judged(judge, ANSWER, texts, "double").shares, strict=True))


@pytest.mark.parametrize("text", PASS)
def test_right(shares: dict[str, float], text: str) -> None:
    assert shares[text] == 1


@pytest.mark.parametrize("text", FAIL)
def test_wrong(shares: dict[str, float], text: str) -> None:
    assert shares[text] == 0


def test_a_file_of_test_functions_counts_in_part(judge: LocalJudge) -> None:
    text = "\\n".join(f"def test_{n}(): assert double({n}) == {wanted}" for n, wanted in ((1, 2), (2, 5), (3, 6)))
    tally = judged(judge, ANSWER, [text, "assert double(1) == 2"])
    assert tally.shares == [2 / 3, 1]
    assert tally.passed == pytest.approx(5 / 6)
    assert tally.first.startswith("case 1: AssertionError")


@cases("answer")
def test_an_answer_that_dies_fails_that_test_and_no_other(judge: LocalJudge, answer: str) -> None:
    tests = "def test_1(): assert f(1) == 1\\ndef test_2(): assert f(2) == 2\\ndef test_3(): assert f(3) == 3"
    quick = replace(judge, limits=replace(judge.limits, cpu_s=1))
    tally = judged(quick, answer, ["assert f(1) == 1", "assert f(2) == 2", tests, "assert f(3) == 3"])
    assert tally.shares == [1, 0, 2 / 3, 1]


@pytest.mark.parametrize(
    "answer", ["def f(:", "import nothing_like_it", "raise SystemExit(0)", "import os\nos._exit(0)", "1 / 0", "exit()"]
)
def test_an_answer_that_cannot_be_loaded_passes_nothing(judge: LocalJudge, answer: str) -> None:
    tally = judged(judge, answer, ["assert True", "pass"])
    assert (tally.shares, tally.compiled) == ([0, 0], False)


@pytest.mark.parametrize("text", ["assert f(1) ==", "import no_such_package_anywhere\nassert f(1)"])
def test_a_test_that_cannot_run_is_no_verdict(judge: LocalJudge, text: str) -> None:
    with pytest.raises(BadCases, match="case 2 of column 'test_cases' cannot be run"):
        judged(judge, "def f(x): return x", ["assert f(1) == 1", text])


def test_the_main_block_of_an_answer_does_not_run(judge: LocalJudge) -> None:
    answer = "def f(x): return x\nif __name__ == '__main__':\n    input()\n    raise ValueError"
    assert judged(judge, answer, ["assert f(1) == 1"]).shares == [1]


def test_what_an_answer_prints_and_reads_disturbs_nobody(judge: LocalJudge) -> None:
    answer = (
        "import sys, os\ndef f(x):\n    print('{', flush=True)\n    os.write(1, b'[]\\n')\n    os.write(2, b'x')\n"
        "    return sys.stdin.read() + x"
    )
    assert judged(judge, answer, ["assert f('a') == 'a'"]).shares == [1]
