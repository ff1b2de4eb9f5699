"""Verdicts on programs, and on functions that are called with arguments."""

import os
from dataclasses import replace
from typing import Any

import pytest

from roll.rewards.code.cases import CallCase, Cases, StdinCase, Tally
from roll.rewards.code.languages import LANGUAGES, Code
from roll.rewards.code.local import LocalJudge
from tests.helpers.cases import cases

needs_cpp = pytest.mark.skipif(not os.path.exists(str(LANGUAGES["cpp"].needs)), reason="there is no g++")

DOUBLE = "print(2 * int(input()))"


def judged(judge: LocalJudge, answer: str, *cases: tuple[str, str], language: str = "python") -> Tally:
    stdin = tuple(StdinCase(given, expected) for given, expected in cases)
    return judge.judge(Code(language, answer), Cases("stdin", None, stdin=stdin), stop_early=False)


def called(judge: LocalJudge, answer: str, function: str, *cases: tuple[list[Any], Any]) -> Tally:
    calls = tuple(CallCase(arguments, expected) for arguments, expected in cases)
    return judge.judge(Code("python", answer), Cases("function", function, calls=calls), stop_early=False)


@pytest.mark.parametrize(
    ("answer", "given", "expected", "share"),
    [
        (DOUBLE, "4\n", "8\n", 1),
        (DOUBLE, "4\n", "9\n", 0),
        (DOUBLE, "x\n", "8\n", 0),
        ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", "ba\ndc\n", 1),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2 3", "6", 1),
        ("print(1/3)", "", "0.333333333", 1),
        ("print('a', end='')", "", "a\n", 1),
        ("pass", "", "", 1),
        ("pass", "", "x", 0),
        ("def main():\n    print(1)\nif __name__ == '__main__':\n    main()", "", "1", 1),
        ("import sys\nprint(1)\nsys.exit(0)", "", "1", 1),
        ("import sys\nprint(1)\nsys.exit(1)", "", "1", 0),
        ("import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))", "1 2 3", "6", 1),
        (
            "import os, io\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(int(input()))",
            "7\n",
            "7",
            1,
        ),
        ("print(sum(map(int, open('/dev/stdin').read().split())))", "1 2 3", "6", 1),
        ("import sys\na = sys.stdin.read(); sys.stdin.seek(0); print(a == sys.stdin.read())", "1 2 3", "True", 1),
        ("import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:].decode())", "1 2", "1 2", 1),
        ("import sys\nprint(len(sys.stdin.read()))", "x" * 300_000, "300000", 1),
        ("import os\nos.write(0, b'x')", "1", "", 0),
        ("import mmap\nmmap.mmap(0, 1)[0] = 50", "1", "", 0),
        ("print(1)\nraise ValueError", "", "1", 0),
        ("import os\nprint(1, flush=True)\nos._exit(0)", "", "1", 1),
        ("import os\nprint(1, flush=True)\nos.abort()", "", "1", 0),
        ("def f(n): return n if n < 2 else f(n - 1) + 1\nprint(f(5000))", "", "5000", 1),
        ("print(gcd(12, 18), Counter('aa')['a'], math.floor(2.5))", "", "6 2 2", 1),
        ("import threading\nt = threading.Thread(target=lambda: print(7)); t.start(); t.join()", "", "7", 1),
        ("import asyncio\nasync def f(): await asyncio.sleep(0); print(3)\nasyncio.run(f())", "", "3", 1),
        ("open('/tmp/a', 'w').write('5'); print(open('/tmp/a').read())", "", "5", 1),
        ("print('\\u00e9\\u4e2d')", "", "\u00e9\u4e2d", 1),
        ("print(input())", "\u00e9\n", "\u00e9", 1),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", "", "\ufffd", 1),
        ("print(sys.argv, __name__)", "", "['/box/solution.py'] __main__", 1),
        ("print(hash('a') == hash('a'), list({'b', 'a', 'c'}) == list({'b', 'a', 'c'}))", "", "True True", 1),
        ("def f(:", "", "", 0),
        ("import numpy_that_is_not_there", "", "", 0),
        ("import subprocess\nsubprocess.run(['true'])\nprint(1)", "", "1", 0),
    ],
)
def test_a_program_in_python(judge: LocalJudge, answer: str, given: str, expected: str, share: float) -> None:
    assert judged(judge, answer, (given, expected)).shares == [share]


def test_cases_have_processes_of_their_own_and_fail_alone(judge: LocalJudge) -> None:
    answer = "import os\nprint(os.path.exists('/tmp/seen'))\nopen('/tmp/seen', 'w')"
    assert judged(judge, answer, ("", "False"), ("", "False")).shares == [1, 1]
    tally = judged(judge, DOUBLE, ("1", "2"), ("x", "2"), ("3", "6"), ("4", "7"))
    assert tally.shares == [1, 0, 1, 0] and tally.passed == 0.5 and tally.compiled
    assert tally.first.startswith("case 2: exit 1") and "ValueError" in tally.first
    stdin = tuple(StdinCase(given, "2") for given in ("1", "5", "1"))
    tally = judge.judge(Code("python", DOUBLE), Cases("stdin", None, stdin=stdin), stop_early=True)
    assert tally.shares == [1, 0] and tally.passed == pytest.approx(1 / 3)


def test_limits_end_a_case_and_the_rest_has_not_passed(judge: LocalJudge) -> None:
    quick = replace(judge, limits=replace(judge.limits, cpu_s=1))
    answer = (
        "match input():\n    case 'time':\n        while True: pass\n    case 'memory': bytearray(2**30)\n"
        "    case 'output':\n        while True: print('x' * 1000)\n    case 'fine': print(1)"
    )
    tally = judged(quick, answer, *((word, "1") for word in ("time", "memory", "output", "fine")))
    assert tally.shares == [0, 0, 0, 1] and tally.out_of_time == 1
    short = replace(judge, total_s=6.0)
    tally = judged(short, "import time\nif input() == 'wait': time.sleep(10**6)\nprint(1)", ("wait", "1"), ("", "1"))
    assert tally.shares == [0, 0] and tally.out_of_time == 2


@needs_cpp
def test_a_program_in_cpp_is_compiled_once_and_run_for_each_case(judge: LocalJudge) -> None:
    answer = (
        "#include <bits/stdc++.h>\nint main() {\n    long long a;\n    std::cin >> a;\n    if (a == 7) return 1;\n"
        "    if (a == 8) { volatile int *p = nullptr; *p = 1; }\n    std::cout << 2 * a << std::endl;\n}"
    )
    tally = judged(judge, answer, ("4", "8"), ("5", "11"), ("7", "14"), ("8", "16"), ("9", "18"), language="cpp")
    assert tally.shares == [1, 0, 0, 0, 1] and tally.compiled


@needs_cpp
@cases("answer, why")
def test_what_does_not_compile_passes_nothing_and_says_why(judge: LocalJudge, answer: str, why: str) -> None:
    tally = judged(judge, answer, ("", ""), language="cpp")
    assert (tally.shares, tally.compiled) == ([0], False)
    assert why in tally.first


@pytest.mark.parametrize(
    ("answer", "function", "arguments", "expected", "share"),
    [
        ("def f(a, b): return a + b", "f", [1, 2], 3, 1),
        ("def f(a, b): return a + b", "f", [1, 2], 4, 0),
        ("class Solution:\n    def f(self, a: List[int]) -> int: return max(a)", "f", [[1, 3]], 3, 1),
        ("class Solution:\n    def __init__(self): self.n = 1\n    def f(self): return self.n", "f", [], 1, 1),
        ("f = lambda x: (x, [x])", "f", [1], [1, [1]], 1),
        ("def f(x): return {x: x}", "f", [1], {"1": 1}, 1),
        ("def f(x): return deque([x])", "f", [1], [1], 1),
        ("def f(x): return x / 3", "f", [1], 0.33333333, 1),
        ("def f(x): pass", "f", [1], 1, 0),
        ("def f(x): return True", "f", [1], 1, 0),
        ("def f(x): return {x}", "f", [1], [1], 0),
        ("def f(x): return iter([x])", "f", [1], [1], 0),
        ("def f(x): return object()", "f", [1], None, 0),
        ("class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(2)", "f", [1], 1, 0),
        ("class E(int):\n    def __eq__(self, o): return False\ndef f(x): return E(1)", "f", [1], 1, 1),
        ("def f(x): raise ValueError(x)", "f", [1], 1, 0),
        ("def g(x): return x", "f", [1], 1, 0),
        ("def f(x, y): return x", "f", [1], 1, 0),
        ("def f(x):\n    a = []\n    a.append(a)\n    return a", "f", [1], 1, 0),
        ("def f(x): return '\\ud800' + x", "f", ["\n"], "\ud800\n", 1),
        ("def gcd(a, b): return 5", "gcd", [4, 6], 5, 1),
        ("", "gcd", [4, 6], 2, 0),  # an answer may use it without importing it, and has not given it
        ("def f(x): print('noise'); return input() if x else 5", "f", [0], 5, 1),
    ],
)
def test_a_function(
    judge: LocalJudge, answer: str, function: str, arguments: list[Any], expected: Any, share: float
) -> None:
    assert called(judge, answer, function, (arguments, expected)).shares == [share]


def test_calls_that_end_the_process_leave_the_other_calls(judge: LocalJudge) -> None:
    quick = replace(judge, limits=replace(judge.limits, cpu_s=1))
    answer = (
        "import os\ndef f(x):\n    if x == 'exit': os._exit(0)\n    if x == 'raise': raise SystemExit\n"
        "    if x == 'loop':\n        while True: pass\n    if x == 'close': os.closerange(0, 100)\n"
        "    if x == 'flood': return 'x' * 40_000_000\n    return x"
    )
    words = ["a", "exit", "b", "raise", "loop", "c", "close", "d", "flood", "e"]
    tally = called(quick, answer, "f", *(([word], word) for word in words))
    assert [word for word, share in zip(words, tally.shares, strict=True) if share] == ["a", "b", "c", "d", "e"]


def test_an_answer_that_does_not_load_passes_no_call(judge: LocalJudge) -> None:
    tally = called(judge, "def f(:", "f", ([1], 1), ([2], 2))
    assert (tally.shares, tally.compiled) == ([0, 0], False)
    assert "SyntaxError" in tally.first


def test_calls_of_a_function_need_python(judge: LocalJudge) -> None:
    cases = Cases("function", "f", calls=(CallCase([1], 1),))
    assert judge.judge(Code("cpp", "int f(int x) { return x; }"), cases, stop_early=False).shares == [0]
