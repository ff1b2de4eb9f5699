"""Answers that want a pass without solving anything: each is judged by asserts, by test functions and by calls."""

from pathlib import Path

import pytest

from roll.rewards.code.cases import CallCase, Cases, StdinCase
from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge
from tests.helpers.cases import read

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
PROGRAMS = read(Path(__file__).with_suffix(".yaml"))
REPLIES = {name: text.encode("latin-1") for name, text in PROGRAMS["replies"].items()} | {
    "deep lists": b'["ok", ' + b'["l", ' * 50_000,
    "deep lists that end": b'["ok", ' + b'["l", ' * 9_000 + b"0" + b"]" * 9_000 + b", {}]",
    "a long integer": b'["ok", ' + b"9" * 400_000 + b", {}]",
    "a long integer in base 16": b'["ok", ["i", "' + b"f" * 400_000 + b'"], {}]',
    "many lists": b'["ok", ["l"' + b', ["l"]' * 300_000 + b"], {}]",
    "a long line": b'["ok", "' + b"x" * 2_000_000 + b'", {}]',
}
SPOKEN = {f"speaks {name}": f"{SPEAKS}speak(call={reply!r})" for name, reply in REPLIES.items()}
NAMED = {
    f"names {name}": f"{SPEAKS}speak(call=b'[\"ok\", 0, {{}}]', names={reply.encode()!r})"
    for name, reply in PROGRAMS["names"].items()
}
FORGERIES = PROGRAMS["forgeries"] | SPOKEN | NAMED
TRICKS = PROGRAMS["tricks"] | {"crashes the compiler": f"def f(x): return {'-' * 200_000}1"}


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


@pytest.mark.gate("is a float that is nothing", "says yes to all operators", "is no module", "closes all channels")
@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_passes_neither_tests_nor_calls(judge: LocalJudge, name: str) -> None:
    """Hooks, lies of classes and crashes pass none. And they fail none: nothing raises."""
    for cases in (ASSERTS, CALLS):
        tally = judge.judge(Code("python", TRICKS[name]), cases, stop_early=True)
        assert set(tally.shares) == {0}, tally


@pytest.mark.parametrize("name", ["looks through all objects", "looks through the files"])
def test_a_program_finds_no_expected_output(judge: LocalJudge, name: str) -> None:
    tally = judge.judge(Code("python", f"{FORGERIES[name]}\nprint(f(2))"), PROGRAM, stop_early=False)
    assert tally.shares == [0]


def test_the_same_cases_can_be_passed(judge: LocalJudge) -> None:
    answer = f"def f(x): return {SECRET} if x in (2, 3) else x"
    for cases in (ASSERTS, CALLS):
        assert set(judge.judge(Code("python", answer), cases, stop_early=False).shares) == {1}
