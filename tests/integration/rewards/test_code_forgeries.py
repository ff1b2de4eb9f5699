"""Answers that want a pass without solving anything: each is judged by asserts, by test functions and by calls."""

import pytest

from roll.pipeline.rlvr.rewards.code.cases import CallCase, Cases, StdinCase
from roll.pipeline.rlvr.rewards.code.extract import Code
from roll.pipeline.rlvr.rewards.code.local import LocalJudge

SECRET = 73_939_133
ASSERTS = Cases("assert", "f", asserts=(f"assert f(2) == {SECRET}", f"def test_f():\n    assert f(2) == {SECRET}"))
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
    "raises the channel's end": "import wire\ndef f(x): raise wire.Gone",
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


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_passes_nothing(judge: LocalJudge, name: str) -> None:
    for cases in (ASSERTS, CALLS):
        tally = judge.judge(Code("python", FORGERIES[name]), cases, stop_early=False)
        assert tally.shares == [0, 0], (cases.kind, tally)


@pytest.mark.parametrize("name", ["looks through all objects", "looks through the files"])
def test_a_program_finds_no_expected_output(judge: LocalJudge, name: str) -> None:
    tally = judge.judge(Code("python", f"{FORGERIES[name]}\nprint(f(2))"), PROGRAM, stop_early=False)
    assert tally.shares == [0]


def test_the_same_cases_can_be_passed(judge: LocalJudge) -> None:
    for cases in (ASSERTS, CALLS):
        assert judge.judge(Code("python", f"def f(x): return {SECRET}"), cases, stop_early=False).shares == [1, 1]
