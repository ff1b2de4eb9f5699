"""Objects of the answer in asserts and tests: classes, named tuples, counters, copies, signatures and exceptions."""

import pytest

from roll.rewards.code.cases import CallCase, Cases
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge

ANSWER = '''
import enum
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


@pytest.fixture(scope="module")
def shares(judge: LocalJudge) -> dict[str, float]:
    texts = [*RIGHT, UNITTEST, *WRONG]
    cases = Cases("assert", None, asserts=tuple(text.replace("\\n", "\n") for text in texts))
    return dict(zip(texts, judge.judge(Code("python", ANSWER), cases, stop_early=False).shares, strict=True))


@pytest.mark.parametrize("text", [*RIGHT, UNITTEST])
def test_objects_of_the_answer_are_in_tests_what_they_are(shares: dict[str, float], text: str) -> None:
    assert shares[text] == 1


@pytest.mark.parametrize("text", WRONG)
def test_and_nothing_else(shares: dict[str, float], text: str) -> None:
    assert shares[text] == 0


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
