"""Verdicts on asserts and on objects of the answer in them, one by one: many share a start of the sandbox, none its
outcome. Forms of tests are test_code_forms.py's."""

from dataclasses import replace

import pytest

from roll.rewards.code.cases import CallCase, Cases, Tally
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge
from tests.helpers.cases import cases

ANSWER = '''
import builtins, datetime, decimal, enum, fractions
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

Point = namedtuple("Point", "x y")
class Pair(NamedTuple):
    left: int
    right: str = "r"
class Shape(ABC):
    @abstractmethod
    def area(self): ...
class Square(Shape):
    """Four equal sides."""
    def __init__(self, side): self.side = side
    def area(self): return self.side ** 2
@dataclass
class Row:
    values: list
    name: str = "n"
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Node:
    def __init__(self, value): self.value, self.next = value, None
class BankError(Exception):
    pass
class TooLittle(BankError):
    def __init__(self, needed, held):
        super().__init__(f"needs {needed}, has {held}")
        self.needed, self.held = needed, held
class Coded(ValueError):
    def __init__(self, code, text): self.code, self.text = code, text
    def __str__(self): return f"[{self.code}] {self.text}"

def point(): return Point(1, 2)
def points(): return [Point(1, 2), Point(3, 4)]
def moved(p): return p._replace(x=p.x + 1)
def pair(): return Pair(5)
def square(side): return Square(side)
def itself(value): return value
def row(): return Row([1, 2])
def counted(text): return Counter(text)
def ordered(): return OrderedDict([("b", 1), ("a", 2)])
def grouped():
    found = defaultdict(list)
    found["a"].append(1)
    return found
def converted(kind, text): return kind(text)
def kind_of(value): return type(value)
def greet(name: str, times: int = 1, *, end="!") -> str:
    """Greets."""
    return name * times + end
def spend(needed, held): raise TooLittle(needed, held)
def fail(): raise ValueError("bad", 3)
def missing(): raise KeyError("k")
def coded(): raise Coded(7, "no")
def noted():
    error = RuntimeError("x")
    error.code = 5
    raise error
def head():
    node = Node(1)
    node.next = node
    return node
class Int(int): pass
class Fake:
    __class__ = int
    def __eq__(self, other): return True
    def __hash__(self): return 0
class Meta(type):
    def __instancecheck__(cls, value): return True
    def __subclasscheck__(cls, value): return True
    def __eq__(cls, other): return True
    def __hash__(cls): return 0
class Every(metaclass=Meta):
    _fields = ("x",)
def fake(): return Fake()
def every(): return Every()
def fake_point():
    class P(tuple):
        _fields = ("x", "y")
        def __eq__(self, other): return True
        def __hash__(self): return 0
    return P((0, 0))
def same(x): return x
def double(x): return x * 2
def arguments(a, b=5, *rest, key=None): return (a, b, rest, key)
def raising(kind, text="bad"): raise getattr(builtins, kind)(text)
def count(n):
    for i in range(n): yield i
def endless():
    i = 0
    while True:
        yield i
        i += 1
def sort_in_place(values): values.sort()
def add_item(values): values.add(9)
def apply(function, *values): return [function(value) for value in values]
def guarded(function):
    try: return function()
    except ZeroDivisionError: return "caught"
def kinds(): return {"t": (1, 2), "s": {1, 2}, "b": b"x", 5: [1.5]}
def money(): return decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2024, 2, 29)
def typed(values: List[int]) -> Optional[int]: return max(values, default=None)
def gcd(a, b): return 42
limit = 7
class Stack:
    def __init__(self, *items): self.items = list(items)
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
'''

RIGHT = """
assert point() == (1, 2) and point().x == 1 and point().y == 2
assert isinstance(point(), Point) and isinstance(point(), tuple)
assert point()._asdict() == {"x": 1, "y": 2} and point()._fields == ("x", "y")
assert points()[1].y == 4 and [p.x for p in points()] == [1, 3]
assert pair().left == 5 and pair().right == "r" and pair() == (5, "r")
from collections import namedtuple; P = namedtuple("P", "x y"); assert moved(P(1, 2)) == P(2, 2)
assert isinstance(square(2), Square) and isinstance(square(2), Shape)
assert issubclass(Square, Shape) and not issubclass(Square, Node)
assert type(square(2)) is Square
assert type(square(2)).__name__ == "Square"
assert type(itself(3)) is int and type(itself([])) == list
assert isinstance(Square, type) and not isinstance(square(2), type)
class M(type): pass\\nassert itself(1) == 1 and isinstance(M("T", (), {}), type)
assert callable(square) and callable(Square) and not callable(square(2)) and callable(len)
n = head(); assert n.next is n and itself(n) is n
s = square(2); assert s is s and s in [s]
assert Color.RED is Color.RED and Color(1) is Color.RED and Color["BLUE"].value == 2
assert Square.__doc__ == "Four equal sides." and greet.__doc__ == "Greets."
from copy import deepcopy; r = row(); c = deepcopy(r); r.values = [9]; assert c.values == [1, 2] and c is not r
import copy; n = head(); c = copy.deepcopy([n, 1]); assert c[1] == 1 and c[0].value == 1 and c[0] is not n
assert counted("aab").most_common(1) == [("a", 2)]
assert counted("aab") == {"a": 2, "b": 1} and counted("aab")["z"] == 0
from collections import Counter; assert isinstance(counted("a"), Counter) and (counted("ab") - counted("a")) == {"b": 1}
assert grouped()["a"] == [1] and grouped()["z"] == [] and grouped() == {"a": [1]}
assert converted(int, "5") == 5 and converted(str, 5) == "5"
assert kind_of(3) is int and kind_of("a") == str
import inspect; assert list(inspect.signature(greet).parameters) == ["name", "times", "end"]
import inspect; assert str(inspect.signature(greet)) == "(name: str, times: int = 1, *, end='!') -> str"
assert greet.__annotations__ == {"name": str, "times": int, "return": str}
try: fail()\\nexcept ValueError as e: assert e.args == ("bad", 3)
try: missing()\\nexcept KeyError as e: assert e.args[0] == "k" and str(e) == "'k'"
try: spend(5, 3)\\nexcept BankError as e: assert str(e) == "needs 5, has 3" and isinstance(e, TooLittle)
try: coded()\\nexcept ValueError as e: assert e.code == 7 and str(e) == "[7] no" and e.args == (7, "no")
try: noted()\\nexcept RuntimeError as e: assert e.code == 5 and str(e) == "x"
import pytest\\nwith pytest.raises(BankError) as i: spend(5, 3)\\nassert i.value.held == 3 and i.type is TooLittle
import pytest\\nwith pytest.raises(TooLittle, match="needs 5"): spend(5, 3)
assert double(2) == 4 and double(x=3) == 6 and double([1]) == [1, 1]
assert same(None) is None and same(True) is True and not same([])
assert same(2**100) == 2**100
assert same("\\u00e9\\ud800") == "\\u00e9\\ud800"
assert same((1, (2, [3]))) == (1, (2, [3])) and same({1: {2: {3}}}) == {1: {2: {3}}}
assert type(same((1,))) is tuple
assert abs(double(1.5) - 3) < 1e-9
assert [double(i) for i in range(3)] == [0, 2, 4]
assert arguments(1) == (1, 5, (), None) and arguments(1, 2, 3, key="k") == (1, 2, (3,), "k")
assert list(count(3)) == [0, 1, 2]
from itertools import islice; assert list(islice(endless(), 3)) == [0, 1, 2]
values = [3, 1, 2]; sort_in_place(values); assert values == [1, 2, 3]
values = {1}; add_item(values); assert values == {1, 9}
assert apply(lambda x: x + 1, 1, 2) == [2, 3] and guarded(lambda: 1 / 0) == "caught"
assert kinds()["t"] == (1, 2) and kinds()["s"] == {1, 2} and kinds()["b"] == b"x" and kinds()[5] == [1.5]
assert money()[0] + 1 == __import__("decimal").Decimal("2.10")
assert typed([1, 5]) == 5 and typed([]) is None and limit == 7
stack = Stack(1); stack.push(2); assert stack.pop() == 2 and len(stack) == 1
assert Stack(1, 2) == Stack(1, 2) and list(Stack(1, 2)) == [1, 2] and Stack(1, 2)[0] == 1 and 2 in Stack(1, 2)
assert (Stack(1) + Stack(2)).items == [1, 2] and Stack() < Stack(1)
assert f"{Stack(1)}" == "Stack([1])" and hash(Stack()) == 3
with Stack() as stack: pass\\nassert stack.items == ["closed"]
stack = Stack(); stack.items = [5]; assert stack.pop() == 5
assert Row([1]) == Row([1]) and Row([1]) != Row([2]) and hasattr(row(), "name") and not hasattr(row(), "z")
from solution import gcd; assert gcd(4, 2) == 42
""".strip().splitlines()

WRONG = """
assert type(fake()) is int
assert isinstance(fake(), int)
assert fake() == 3
assert isinstance(every(), int)
assert issubclass(type(every()), int)
assert type(itself(3)) is Int
assert fake_point() == (1, 2)
assert isinstance(fake_point(), Point)
assert point() == (2, 1)
assert isinstance(pair(), Point)
assert isinstance(square(2), Node)
assert callable(square(2))
from copy import deepcopy; r = row(); assert deepcopy(r) is r
assert counted("aab") == {"a": 1, "b": 1}
try: fail()\\nexcept ValueError as e: assert e.args == ("bad",)
try: spend(5, 3)\\nexcept BankError as e: assert e.needed == 3
import pytest\\nwith pytest.raises(TooLittle): fail()
import inspect; assert list(inspect.signature(greet).parameters) == ["name"]
assert same(1) is True
assert same((1,)) == [1]
assert nobody(1) == 1
from solution import nobody; assert True
raising("SystemExit")
raising("StopIteration")
assert abs(double(1.5) - 4) < 1e-9
assert sorted(same([3, 1])) == [1, 2, 3]
assert all(same([0]))
values = [3, 1]; same(values); assert values == [1, 3]
assert Stack(1) == [1]
assert gcd(4, 2) == 2
assert [yes()] == [4]
assert {"a": yes()} == {"a": 4}
assert not yes() != 4
assert 4 > yes()
assert yes() in [4, 5]
assert yes() in {4: 1}
assert max(yes(), 4) == 4
import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): self.assertAlmostEqual(yes(), 4)
assert lying_list() == [2]
assert lying_text() == "b"
""".strip().splitlines()

LIES = """
import os
def say(*lines):
    for fd in range(3, 64):
        try: os.write(fd, b"".join(line + b"\\n" for line in lines))
        except OSError: pass
class Odd:
    pass
def f(x):
    say(*LINES)
    return Odd()
"""
SPOKEN = {
    "a type of Python's": b'["ok", ["object", 0], {}]\n["ok", ["T", "int"]]\n["ok", ["T", "int"]]',
    "a type that is no value's": b'["ok", ["T", "object"], {}]',
    "a named tuple with a dunder": b'["ok", ["n", null, "P", ["__eq__"], 5], {}]',
    "a named tuple of a wrong length": b'["ok", ["n", null, "P", ["x"], 5, 6], {}]',
    "a named tuple of no names": b'["ok", ["n", null, "P", 5], {}]',
    "a named tuple by a keyword": b'["ok", ["n", null, "P", ["class"], 5], {}]',
    "a named tuple of code": b'["ok", ["n", null, "P=1;import os", ["x"], 5], {}]',
    "a named tuple of many fields": b'["ok", ["n", null, "P", ["a", "a"], 5, 5], {}]',
    "a default of everything": b'["ok", ["D", "eval", ["a", 1]], {}]',
    "a counter of no pairs": b'["ok", ["C", 5], {}]',
    "an error with methods": b'["raise", ["ValueError"], "x", ["l"], [["__class__", 5], ["__eq__", 5]]]',
    "an error with no arguments": b'["raise", ["ValueError"], "x", 5, 5]',
}
SECRET = 73_939_133
TEXTS = (
    f"assert type(f(2)) is int and f(2) == {SECRET}",
    "assert type(f(2)) == int",
    "assert isinstance(f(2), int)",
    f"from copy import deepcopy\nassert deepcopy(f(2)) == {SECRET}",
    f"assert f(2)._asdict() == dict(x={SECRET})",
    f"try:\n    f(2)\nexcept Exception as e:\n    assert e.args == ({SECRET},)\nelse:\n    raise AssertionError",
)

UNITTEST = """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        with self.assertRaises(BankError) as caught:
            spend(1, 0)
        self.assertEqual(caught.exception.needed, 1)
        self.assertIsInstance(square(1), Square)
        self.assertIs(type(square(1)), Square)
"""


def judged(judge: LocalJudge, answer: str, asserts: list[str], function: str | None = None) -> Tally:
    texts = tuple(text.replace("\\n", "\n") for text in asserts)
    return judge.judge(Code("python", answer), Cases("assert", function, asserts=texts), stop_early=False)


@pytest.fixture(scope="module")
def shares(judge: LocalJudge) -> dict[str, float]:
    texts = [*RIGHT, UNITTEST, *WRONG]
    return dict(zip(texts, judged(judge, ANSWER, texts).shares, strict=True))


@pytest.mark.parametrize(("text", "share"), [*((text, 1) for text in (*RIGHT, UNITTEST)), *((t, 0) for t in WRONG)])
def test_objects_of_the_answer_are_in_tests_what_they_are_and_nothing_else(
    shares: dict[str, float], text: str, share: int
) -> None:
    assert shares[text] == share


@pytest.mark.gate("a type of Python's", "a named tuple with a dunder", "an error with methods")
@pytest.mark.parametrize("name", SPOKEN)
def test_a_lie_about_an_object_passes_no_test(judge: LocalJudge, name: str) -> None:
    answer = f"LINES = {SPOKEN[name].splitlines()!r}\n{LIES}"
    tally = judge.judge(Code("python", answer), Cases("assert", "f", asserts=TEXTS), stop_early=False)
    assert set(tally.shares) == {0}, tally


def test_calls_compare_named_tuples_and_counters_as_lists_and_mappings(judge: LocalJudge) -> None:
    calls = (CallCase(["aab"], {"a": 2, "b": 1}), CallCase(["b"], {"b": 2}))
    tally = judge.judge(Code("python", ANSWER), Cases("function", "counted", calls=calls), stop_early=False)
    assert tally.shares == [1, 0]
    point = Cases("function", "point", calls=(CallCase([], [1, 2]), CallCase([], [2, 1])))
    assert judge.judge(Code("python", ANSWER), point, stop_early=False).shares == [1, 0]


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


def test_the_main_block_of_an_answer_does_not_run(judge: LocalJudge) -> None:
    answer = "def f(x): return x\nif __name__ == '__main__':\n    input()\n    raise ValueError"
    assert judged(judge, answer, ["assert f(1) == 1"]).shares == [1]


def test_what_an_answer_prints_and_reads_disturbs_nobody(judge: LocalJudge) -> None:
    answer = (
        "import sys, os\ndef f(x):\n    print('{', flush=True)\n    os.write(1, b'[]\\n')\n    os.write(2, b'x')\n"
        "    return sys.stdin.read() + x"
    )
    assert judged(judge, answer, ["assert f('a') == 'a'"]).shares == [1]
