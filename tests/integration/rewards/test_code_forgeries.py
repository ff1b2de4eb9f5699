"""Answers that want a pass without solving anything: each is judged by asserts, by test functions and by calls."""

import pytest

from roll.rewards.code.cases import CallCase, Cases, StdinCase
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge

SECRET = 73_939_133
TALK_ON = ("defines", "names", "is ", "says", "hands", "imports", "lies", "replaces built-in", "speaks an object")
TEXTS = (
    f"assert f(2) == {SECRET}",
    f"def test_f():\n    assert f(2) == {SECRET}",
    f"from solution import *\nassert abs(f(2) - {SECRET}) < 1e-6 and sorted([f(2)]) == sorted([{SECRET}])",
    f"assert all(map(lambda case: f(case[0]) == case[1], [(2, {SECRET})]))",
    f"def check(candidate):\n    assert len([x for x in [candidate(2)] if x == {SECRET}]) == 1",
    f"import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(str(f(2)), '{SECRET}')",
    f"def same(x): return x\nassert f(same)(2) == same(2)\nassert f(2) == {SECRET}",
)
ASSERTS = Cases("assert", "f", asserts=TEXTS)
CALLS = Cases("function", "f", calls=(CallCase([2], SECRET), CallCase([3], SECRET)))
PROGRAM = Cases("stdin", None, stdin=(StdinCase("2", str(SECRET)),))

FORGERIES = {
    "leaves at once": "import os\ndef f(x): os._exit(0)",
    "leaves while it is loaded": "import os\nos._exit(0)",
    "leaves politely": "import sys\ndef f(x): sys.exit(0)",
    "is equal to everything": "class Y:\n    def __eq__(s, o): return True\ndef f(x): return Y()",
    "is an int that is equal to everything": "class Y(int):\n    def __eq__(s, o): return True\ndef f(x): return Y(0)",
    "claims another class": "class Y:\n    __class__ = int\n    def __eq__(s, o): return True\ndef f(x): return Y()",
    "does not know": "def f(x): return NotImplemented",
    "returns an ellipsis of anything": "from unittest import mock\ndef f(x): return mock.ANY",
    "returns a mock": "from unittest import mock\ndef f(x): return mock.MagicMock()",
    "raises what ends an iteration": "def f(x): raise StopIteration(0)",
    "raises a skipped test": "import unittest\ndef f(x): raise unittest.SkipTest('no')",
    "raises an exit": "def f(x): raise SystemExit(0)",
    "raises the channel's end": "import wire\ndef f(x): raise wire.PeerClosed",
    "looks through the frames": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, int) and value > 10**7 and value < 10**8: return value
        frame = frame.f_back
    return 0
""",
    "looks through all objects": """
import gc
def f(x):
    for thing in gc.get_objects():
        for value in gc.get_referents(thing):
            if isinstance(value, int) and 10**7 < value < 10**8: return value
    return 0
""",
    "looks through its memory": """
import ctypes, re, sys
def f(x):
    found = re.search(rb"7[0-9]{7}", b"".join(ctypes.string_at(id(m), 64) for m in list(sys.modules.values())))
    return int(found.group()) if found else 0
""",
    "looks through the files": """
import os, re
def f(x):
    for folder, _, files in [*os.walk('/box'), *os.walk('/tmp')]:
        for file in files:
            found = re.search(r'== (7[0-9]{7})', open(os.path.join(folder, file), errors='replace').read())
            if found: return int(found.group(1))
    return 0
""",
    "reads ahead on the channel": """
import os, re, select
def f(x):
    for fd in range(3, 64):
        try:
            if select.select([fd], [], [], 0)[0]:
                found = re.search(rb'7[0-9]{7}', os.read(fd, 65536))
                if found: return int(found.group())
        except OSError: pass
    return 0
""",
    "writes verdicts on every channel": """
import os
WORDS = b'["units", 0, 1]\\n["unit", 0, 0, true, ""]\\n["file", 0, true, ""]\\n["file", 1, true, ""]\\n["ok", null]\\n'
def f(x):
    for fd in range(64):
        try: os.write(fd, WORDS)
        except OSError: pass
    return 0
""",
    "writes verdicts while it is loaded": """
import os
for fd in range(64):
    try: os.write(fd, b'["ok"]\\n["ok", []]\\n["file", 0, true, ""]\\n["file", 1, true, ""]\\n["end"]\\n')
    except OSError: pass
def f(x): return 0
""",
    "calls functions that nobody passed": """
import os
def f(x):
    for number in range(10): os.write(4, b'["callback", %d, []]\\n' % number)
    return 0
""",
    "replaces what it is served by": """
import sys
for name in ('answer', 'wire', '__main__'):
    module = sys.modules.get(name)
    if module is not None:
        for key in list(vars(module)):
            if callable(getattr(module, key)): setattr(module, key, lambda *a, **k: True)
def f(x): return True
""",
    "replaces built-in names": """
import builtins
class Passes(Exception): pass
builtins.AssertionError = Passes
for name in ('abs', 'sorted', 'all', 'any', 'isinstance', 'int', 'range'): setattr(builtins, name, lambda *a: True)
def f(x): return True
""",
    "replaces the operators": """
import operator, math
operator.eq = math.isclose = lambda *a, **k: True
def f(x): return 0
""",
    "patches the tests' module": """
import sys, types
for name in ('case_0', 'case_1', 'remote', 'checker'): sys.modules[name] = types.ModuleType(name)
sys.modules['remote'].Peer = None
def f(x): return 0
""",
    "puts files where modules come from": """
import sys
open('/tmp/remote.py', 'w').write('import os; os._exit(0)')
open('/tmp/sitecustomize.py', 'w').write('import os; os._exit(0)')
def f(x): return 0
""",
    "works on after its end": """
import atexit, threading, os
atexit.register(lambda: os.write(1, b'["file", 0, true, ""]\\n'))
threading.Thread(target=lambda: [os._exit(0) for _ in [__import__('time').sleep(0.05)]]).start()
def f(x): return 0
""",
    "kills all it may": "import os, signal\ndef f(x):\n    os.kill(-1, signal.SIGKILL)\n    return 0",
    "kills its parent": "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 0",
    "answers with everything": "def f(x): return list(range(100))",
    "answers with a generator of everything": "def f(x):\n    while True: yield 0",
    "is its own iterator": """
class Y:
    def __iter__(s): return s
    def __next__(s): return 0
def f(x): return Y()
""",
    "says how to be subtracted": """
class Y(float):
    def __sub__(s, o): return 0
    __rsub__ = __sub__
def f(x): return Y('nan')
""",
}

SPEAKS = """
import sys
def channel():
    frame = sys._getframe()
    while 'channel' not in frame.f_locals: frame = frame.f_back
    return frame.f_locals['channel']
def speak(**replies):
    it = channel()
    it.send(["ok"])
    usual = {"begin": b'["ok", null]', "names": b'["ok", ["f", null]]', "solve": replies["call"]}
    usual.update(name=b'["ok", ["object", 0]]', candidate=b'["ok", ["object", 0]]', operate=b'["ok", true]')
    usual.update(get=b'["ok", ["object", 0]]', **replies)
    while True:
        it._writer.write(usual.get(it.receive()[0], b'["ok", null]') + b"\\n")
        it._writer.flush()
"""
REPLIES = {
    "an unknown mark": b'["ok", ["zz", -1], {}]',
    "a function of the tests": b'["ok", ["callback", 0], {}]',
    "the last function of the tests": b'["ok", ["callback", -1], {}]',
    "something undefined": b'["ok", ["undefined"], {}]',
    "an object that agrees": b'["ok", ["object", 0], {}]',
    "an object without a number": b'["ok", ["object"], {}]',
    "an object of many numbers": b'["ok", ["object", [], {}], {}]',
    "nothing": b"null",
    "an empty line": b"",
    "an empty list": b"[]",
    "a bare word": b'"ok"',
    "a mapping": b'{"ok": true, "passed": true}',
    "no value": b'["ok"]',
    "no text": b"\xff\xfe",
    "deep lists": b'["ok", ' + b'["l", ' * 50_000,
    "deep lists that end": b'["ok", ' + b'["l", ' * 9_000 + b"0" + b"]" * 9_000 + b", {}]",
    "a long integer": b'["ok", ' + b"9" * 400_000 + b", {}]",
    "a long integer in base 16": b'["ok", ["i", "' + b"f" * 400_000 + b'"], {}]',
    "a bad integer": b'["ok", ["i", "-"], {}]',
    "a number that is none": b'["ok", NaN, {}]',
    "a decimal that raises": b'["ok", ["decimal", "sNaN"], {}]',
    "a fraction of nothing": b'["ok", ["fraction", "1/0"], {}]',
    "a day that is none": b'["ok", ["date", "tomorrow"], {}]',
    "a range without steps": b'["ok", ["r", 0, 1, 0], {}]',
    "a range of everything": b'["ok", ["r", 0, 100000000000000000000], {}]',
    "a set of lists": b'["ok", ["s", ["l"]], {}]',
    "a mapping by lists": b'["ok", ["d", [["l"], 1]], {}]',
    "half a mapping": b'["ok", ["d", [1]], {}]',
    "many lists": b'["ok", ["l"' + b', ["l"]' * 300_000 + b"], {}]",
    "a long line": b'["ok", "' + b"x" * 2_000_000 + b'", {}]',
    "a change of what was not passed": b'["ok", 0, {"7": 1}]',
    "a change of the last": b'["ok", 0, {"-1": ["l"]}]',
    "changes in no mapping": b'["ok", 0, [1]]',
    "a call of no function": b'["callback", 99, []]',
    "a call of the last function": b'["callback", -1, []]',
    "a call without arguments": b'["callback"]',
    "an exit": b'["raise", ["SystemExit", "BaseException"], "0"]',
    "an interrupt": b'["raise", ["KeyboardInterrupt"], ""]',
    "the end of an iteration": b'["raise", ["StopIteration"], ""]',
    "the end of a generator": b'["raise", ["GeneratorExit"], ""]',
    "a skipped test": b'["raise", ["SkipTest", "Skipped", "Fault", "Exception"], ""]',
    "a missing module": b'["raise", ["ModuleNotFoundError", "ImportError"], "No module named \'unittest\'"]',
    "a syntax error of the tests": b'["raise", ["SyntaxError"], "case_0.py"]',
    "an error of no class": b'["raise", [], ""]',
    "an error of no list": b'["raise", 5, 5]',
    "an error and no more": b'["raise"]',
    "a verdict": b'["unit", 0, true, ""]',
    "a verdict after a value": b'["ok", 0, {}]\n["file", 0, true, ""]\n["ok", true, {}]',
}
NAMES = {
    "built-in names in a mapping": b'["ok", ["__builtins__", null], ["f", null]]',
    "names of the module": b'["ok", ["__name__", null], ["__all__", null], ["_get", null], ["f", null]]',
    "tests of its own": b'["ok", ["check", null], ["test_f", null], ["setUpModule", null], ["T", null], ["f", null]]',
    "functions of Python": b'["ok", ["abs", null], ["sorted", null], ["all", null], ["len", null], ["f", null]]',
    "exceptions of Python": b'["ok", ["AssertionError", ["Exception"]], ["f", null]]',
    "an exception without a base": b'["ok", ["Odd", []], ["f", null]]',
    "names that are none": b'["ok", [5, null], ["f", null]]',
    "no pairs": b'["ok", 1, 2]',
}
FORGERIES |= {f"speaks {name}": f"{SPEAKS}speak(call={reply!r})" for name, reply in REPLIES.items()}
FORGERIES |= {
    f"names {name}": f"{SPEAKS}speak(call=b'[\"ok\", 0, {{}}]', names={reply!r})" for name, reply in NAMES.items()
}
FORGERIES |= {
    "defines what the tests are made of": """
__builtins__ = {'abs': lambda x: 0}
__all__ = ['abs', 'sorted', 'f']
def abs(x): return 0
def sorted(x): return 0
def all(x): return True
def len(x): return 1
def str(x): return '73939133'
def f(x): return 0
""",
    "imports late what is not there": "def f(x):\n    import numpy_that_is_not_there\n    return 0",
    "hands back what it is given": "def f(x): return x",
    "ends at random while it is loaded": "import os, random\nif random.random() < .5: os._exit(0)\ndef f(x): return 0",
    "fills its line": "def f(x): return 'x' * 3_000_000",
    "fills its line with lists": "def f(x): return [[]] * 300_000",
    "has a long integer": "def f(x): return 1 << 4_000_000",
    "lies in every method": """
class L(list):
    __iter__ = lambda s: iter([73939133])
    __len__ = lambda s: 1
    __getitem__ = lambda s, i: 73939133
class D(dict):
    items = keys = values = lambda s: [(1, 2)]
    __getattr__ = lambda s, n: 73939133
def f(x): return D(a=L([1]))
""",
}


@pytest.mark.gate(*list(FORGERIES)[::3])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_passes_no_test(judge: LocalJudge, name: str) -> None:
    """And fails none: nothing raises. What ends a process is judged by the first of the tests alone."""
    tally = judge.judge(Code("python", FORGERIES[name]), ASSERTS, stop_early=not name.startswith(TALK_ON))
    assert set(tally.shares) == {0}, tally


@pytest.mark.gate(
    *("speaks an unknown mark", "speaks nothing", "speaks a mapping", "speaks deep lists", "speaks a long integer"),
    *("speaks many lists", "speaks a long line", "speaks an error of no list", "speaks a verdict after a value"),
    *("is equal to everything", "leaves at once", "looks through all objects", "lies in every method"),
)
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_passes_no_call(judge: LocalJudge, name: str) -> None:
    tally = judge.judge(Code("python", FORGERIES[name]), CALLS, stop_early=False)
    assert tally.shares == [0, 0], tally


def test_there_are_more_than_sixty() -> None:
    assert len(FORGERIES) > 60


@pytest.mark.parametrize("name", ["looks through all objects", "looks through the files"])
def test_a_program_finds_no_expected_output(judge: LocalJudge, name: str) -> None:
    tally = judge.judge(Code("python", f"{FORGERIES[name]}\nprint(f(2))"), PROGRAM, stop_early=False)
    assert tally.shares == [0]


def test_the_same_cases_can_be_passed(judge: LocalJudge) -> None:
    answer = f"def f(x): return {SECRET} if x in (2, 3) else x"
    for cases in (ASSERTS, CALLS):
        assert set(judge.judge(Code("python", answer), cases, stop_early=False).shares) == {1}
