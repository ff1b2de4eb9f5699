"""The cases of a row: what its columns `case_type`, `test_cases` and `test_case_function` say, in ROLL's form and in
those of APPS, TACO and LiveCodeBench."""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from keyword import iskeyword
from typing import Any, Literal

from roll.rewards.code.suites import problem_of_suite
from roll.utils.text import show
from roll.utils.truths import as_data

TYPE, CASES, FUNCTION, ENTRY_POINT = "case_type", "test_cases", "test_case_function", "entry_point"
METADATA = "metadata"
SETUP = ("test_imports", "test_setup_code")
"""MBPP's columns of what its asserts need: imports, and definitions."""
TRUTH = "ground_truth"
COLUMNS = ((CASES, TRUTH),)

Kind = Literal["stdin", "function", "assert"]
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("stdin", "input", "text", "stdin_stdout", "input_output", "io"), "stdin"),
    **dict.fromkeys(("function", "functional", "call", "call_based", "fn_name"), "function"),
    **dict.fromkeys(("assert", "pytest", "unittest", "assert_code", "check"), "assert"),
}
NAME = re.compile(r"(?:Solution(?:\(\))?\.)?([^\W\d]\w*)")  # LeetCode's have the class in front
DIGITS = 4000
INPUT, OUTPUT = ("stdin", "input", "inputs"), ("expected_stdout", "expected_output", "output", "outputs", "stdout")


class BadCases(ValueError):
    """The row's cases cannot be used; the text names the column."""


@dataclass(frozen=True)
class StdinCase:
    stdin: str
    expected: str


@dataclass(frozen=True)
class CallCase:
    """A call and its expected result. With `may_be_item`, `expected` is a list of one item, and the item alone is
    right, too."""

    arguments: Sequence[Any]
    expected: Any
    may_be_item: bool = False


@dataclass(frozen=True)
class Cases:
    """Test cases of one kind: StdinCases, CallCases, or texts of asserts and test functions. `function` is the one to
    call."""

    kind: Kind
    function: str | None
    stdin: tuple[StdinCase, ...] = ()
    calls: tuple[CallCase, ...] = ()
    asserts: tuple[str, ...] = ()


def read_cases(row: Mapping[str, Any]) -> Cases:
    """Raises BadCases. Without a `case_type` the form of the cases says what they are; a row without `test_cases` may
    have them as its ground truth, as verl's rows of code do."""
    raw = _parsed(row.get(TRUTH) if row.get(CASES) is None else row.get(CASES))
    entries = _entries(raw)
    within = raw if isinstance(raw, Mapping) else entries[0] if isinstance(entries[0], Mapping) else {}
    of_cases = _function(within.get("fn_name"))
    function = _function(row.get(FUNCTION)) or of_cases
    of_metadata = _of_metadata(within) or _of_metadata(row)
    kind = _kind(row.get(TYPE), entries, function or (None if row.get(TYPE) else of_metadata))
    function = function or of_metadata
    if kind == "assert":
        function = function or _entry_point(row)
        setup = _setup(row)
        texts = tuple(_behind(setup, _assert(entry, at)) for at, entry in enumerate(entries))
        for at, text in enumerate(texts):
            if (problem := problem_of_suite(text, function)) is not None:
                raise BadCases(f"case {at + 1} of column {CASES!r} {problem}")
        return Cases(kind, function, asserts=texts)
    pairs = [_pair(entry, at, kind) for at, entry in enumerate(entries)]
    if kind == "stdin":
        stdin = tuple(_stdin(pair, at) for at, pair in enumerate(pairs))
        if not any(case.expected.strip() for case in stdin):
            raise BadCases(f"column {CASES!r} expects no output anywhere: a program that does nothing would pass")
        return Cases(kind, None, stdin=stdin)
    function = function or _entry_point(row)
    if function is None:
        raise BadCases(f"column {FUNCTION!r} is empty, but the cases are of a function: name it there")
    calls = tuple(_call(pair, at) for at, pair in enumerate(pairs))
    is_of_apps = isinstance(raw, Mapping) or of_cases is not None
    if is_of_apps and all(isinstance(call.expected, list) and len(call.expected) == 1 for call in calls):
        calls = tuple(replace(call, may_be_item=True) for call in calls)  # APPS and TACO put each result in a list
    if all(call.expected is None or (call.may_be_item and call.expected == [None]) for call in calls):
        raise BadCases(f"column {CASES!r} expects null of every call: a function that does nothing would pass")
    return Cases(kind, function, calls=calls)


def problem_of(row: Mapping[str, Any]) -> str | None:
    try:
        read_cases(row)
    except BadCases as error:
        text = str(error)
        return text if row.get(CASES) is not None else text.replace(f"column {CASES!r}", "the ground truth")
    return None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return _from_json(value)
    except (ValueError, RecursionError) as error:
        if _IS_PYTHON.search(value):
            return [value]  # HumanEval's and KodCode's `test`
        raise BadCases(
            f"column {CASES!r} is neither JSON ({error}) nor Python with tests; write a list of cases"
        ) from error


_IS_PYTHON = re.compile(r"^\s*(?:assert\b|(?:async\s+)?def\s+\w+\(|class\s+\w+)", re.MULTILINE)


def _setup(row: Mapping[str, Any]) -> str:
    """The lines that MBPP's columns put before each assert. Raises BadCases for what is neither a text nor a list of
    texts."""
    lines: list[str] = []
    for column in SETUP:
        value = row.get(column)
        value = as_data(value)  # CSV files and some parquet files hold lists as JSON
        texts = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(text, str) for text in texts):
            raise BadCases(f"column {column!r} holds neither a text nor a list of texts, but {str(value)[:60]!r}")
        lines += texts
    return "".join(f"{line}\n" for line in lines if line.strip())


_FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)


def _behind(setup: str, text: str) -> str:
    if not setup:
        return text
    first = [line.rstrip("\n") + "\n" for line in _FUTURE.findall(text)]
    return "".join(first) + setup + _FUTURE.sub("\n", text) if first else setup + text


def _from_json(text: str) -> Any:
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int:
    """An integer of any length: Python itself reads 4300 digits at a time."""
    if len(digits) <= DIGITS:
        return int(digits)
    half = len(digits) // 2
    head, tail = _whole(digits[:-half]), _whole(digits[-half:])
    return head * 10**half + (-tail if digits.startswith("-") else tail)


def _function(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    name = NAME.fullmatch(value.strip()) if isinstance(value, str) else None
    if name is None or iskeyword(name[1]):
        raise BadCases(f"column {FUNCTION!r} holds {show(value, 60)}, which is no name of a function")
    return name[1]


def _of_metadata(metadata: Mapping[str, Any]) -> str | None:
    """The name in a case of DeepCoder's, or in a row of LiveCodeBench's: `{"metadata": {"func_name": "f"}}`, or JSON of
    it. Metadata of other data say nothing."""
    value = metadata.get(METADATA)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return _function(value.get("func_name")) if isinstance(value, Mapping) else None


def _entry_point(row: Mapping[str, Any]) -> str | None:
    """HumanEval's column, if it holds a name: where ours is empty."""
    value = row.get(ENTRY_POINT)
    name = NAME.fullmatch(value.strip()) if isinstance(value, str) else None
    return name[1] if name is not None and not iskeyword(name[1]) else None


def _entries(raw: Any) -> list[Any]:
    """The cases one by one; APPS has all inputs in one list and all outputs in another."""
    if isinstance(raw, Mapping):
        inputs, outputs = _first(raw, ("inputs", "input")), _first(raw, ("outputs", "output"))
        if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or isinstance(inputs, str):
            raise BadCases(f"column {CASES!r} has the keys {', '.join(map(str, raw))}; inputs and outputs are lists")
        if len(inputs) != len(outputs):
            raise BadCases(f"column {CASES!r} has {len(inputs)} inputs and {len(outputs)} outputs")
        raw = [{"input": input_value, "output": wanted} for input_value, wanted in zip(inputs, outputs, strict=True)]
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise BadCases(f"column {CASES!r} holds {show(raw, 60)}; write a list of cases")
    if not raw:
        raise BadCases(f"column {CASES!r} is an empty list: every program would pass")
    return list(raw)


def _kind(named: Any, entries: Sequence[Any], function: str | None) -> Kind:
    text = "" if named is None else str(named).strip().lower()
    if text and text not in KINDS:
        raise BadCases(f"column {TYPE!r} holds {show(named, 60)}; known are {', '.join(KINDS)}")
    first = entries[0]
    if isinstance(first, str) or (isinstance(first, Mapping) and "assert_code" in first):
        if text and KINDS[text] != "assert":
            raise BadCases(f"column {TYPE!r} is {text}, but column {CASES!r} holds asserts")
        return "assert"
    if isinstance(first, Mapping) and first.get("testtype") == "functional":
        return "function"
    if not text and isinstance(first, Mapping) and first.get("testtype") in ("stdin", "stdin_stdout"):
        return "stdin"
    if text and KINDS[text] == "assert":
        raise BadCases(f"column {TYPE!r} is {text}, but case 1 of column {CASES!r} has no assert_code")
    return "function" if function is not None else KINDS.get(text, "stdin")


def _assert(entry: Any, at: int) -> str:
    text = entry.get("assert_code") if isinstance(entry, Mapping) else entry
    if not isinstance(text, str) or not text.strip():
        raise BadCases(f"case {at + 1} of column {CASES!r} has no assert_code")
    return text


def _pair(entry: Any, at: int, kind: Kind) -> tuple[Any, Any]:
    """Return the input and the expected output of a case. A function may return None, and then a key of the output is
    there."""
    if not isinstance(entry, Mapping):
        raise BadCases(
            f"case {at + 1} of column {CASES!r} is {show(entry, 60)}, not a mapping with stdin and expected_stdout"
        )
    input_value, wanted = _first(entry, INPUT), _first(entry, OUTPUT)
    expects_none = kind == "function" and any(key in entry for key in OUTPUT)
    if input_value is None or (wanted is None and not expects_none):
        if empty := [key for key in (INPUT if input_value is None else OUTPUT) if key in entry]:
            raise BadCases(f"case {at + 1} of column {CASES!r}: {empty[0]} is null")
        missing = " nor ".join((INPUT if input_value is None else OUTPUT)[:3])
        raise BadCases(f"case {at + 1} of column {CASES!r} has neither {missing}; it has {', '.join(map(str, entry))}")
    return input_value, wanted


def _first(entry: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((entry[key] for key in keys if entry.get(key) is not None), None)


def _stdin(pair: tuple[Any, Any], at: int) -> StdinCase:
    texts = ["\n".join(map(str, side)) if isinstance(side, list) else side for side in pair]
    if not all(isinstance(text, str) for text in texts):
        raise BadCases(f"case {at + 1} of column {CASES!r}: input and output are texts, not {show(pair, 60)}")
    return StdinCase(*texts)


def _call(pair: tuple[Any, Any], at: int) -> CallCase:
    """Arguments are a list, and the result is then the value itself; or they are a text of one JSON value a line, and
    the result is JSON too."""
    arguments, wanted = pair
    try:
        if isinstance(arguments, str):
            arguments = [_from_json(line) for line in arguments.splitlines() if line.strip()]
            wanted = _from_json(wanted) if isinstance(wanted, str) else wanted
    except (ValueError, RecursionError) as error:
        raise BadCases(f"case {at + 1} of column {CASES!r}: arguments and result are JSON: {error}") from error
    if not isinstance(arguments, list):
        raise BadCases(f"case {at + 1} of column {CASES!r}: the arguments are {show(arguments, 60)}, not a list")
    return CallCase(arguments, wanted)


# Is this what was expected? Asked outside the sandbox, of what came out of it.

WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|[0-9]*\.[0-9]+|[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,4})")
TOLERANCE = 1e-6  # relative, and absolute in outputs and beside a result of zero
NOISE = 1e-12  # of results: sin(pi) is zero


def same_output(got: str, expected: str) -> bool:
    """Lines are compared without the space at their ends and without empty lines at the end; where they differ, words
    are. A number that is expected with a fraction or an exponent may be off by 1e-6, a whole one may be written with
    them: 2.0 is 2, and 2.000001 is not."""
    if _lines(got) == _lines(expected):
        return True
    words, wanted = got.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if WHOLE.fullmatch(expected):
        return NUMBER.fullmatch(got) is not None and Decimal(got) == Decimal(expected)
    if not any(mark in expected for mark in ".eE"):
        return False
    try:
        return _close(float(got), float(expected))
    except ValueError:
        return False


def same_value(got: object, expected: object) -> bool:
    """Equal as JSON has it: tuples are lists, keys of mappings are texts, floats may be off by 1e-6 of themselves; a
    number is no truth value."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        ours, theirs = _by_text(got), _by_text(expected)
        return ours.keys() == theirs.keys() and all(same_value(ours[key], theirs[key]) for key in ours)
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, float) or isinstance(expected, float):
        return isinstance(got, int | float) and isinstance(expected, int | float) and _close_numbers(got, expected)
    return type(got) is type(expected) and got == expected


def _by_text(values: Mapping[object, object]) -> dict[str, object]:
    return {str(key): value for key, value in values.items()}


def _close_numbers(got: float, expected: float) -> bool:
    try:
        return _close(float(got), float(expected), NOISE if expected else TOLERANCE)
    except OverflowError:  # an integer that no float holds
        return False


def _close(got: float, expected: float, absolute: float = TOLERANCE) -> bool:
    if math.isnan(expected):
        return math.isnan(got)
    return math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=absolute)


# What the cases say of an answer.

OUT_OF_TIME = "no time was left for it"
GRACE_S = 2.0  # from the last word of a process to its end


@dataclass
class Tally:
    """Grows case by case. `shares`: 1 for a case that passed, 0 for one that did not; a file of test functions may have
    passed in part. `first` says why the first one failed. `out_of_time` counts those that a time limit ended."""

    num_cases: int
    stop_early: bool = False  # after the first case that fails: nothing but all of them counts
    shares: list[float] = field(default_factory=list)
    first: str = ""
    out_of_time: int = 0
    compiled: bool = True

    def add(self, share: float, why: str = "", out_of_time: bool = False) -> None:
        if share < 1 and not self.first:
            self.first = f"case {len(self.shares) + 1}: {why}"
        self.shares.append(share)
        self.out_of_time += out_of_time

    def broken(self, why: str, out_of_time: bool = False) -> None:
        """No case can pass."""
        self.first, self.compiled = why, False
        self.out_of_time += out_of_time
        self.shares = [0.0] * self.num_cases

    @property
    def is_done(self) -> bool:
        return len(self.shares) >= self.num_cases or (self.stop_early and min(self.shares, default=1.0) < 1)

    @property
    def passed(self) -> float:
        return sum(self.shares) / self.num_cases


class Budget:
    """The time that all cases of an answer have together."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0


def shorten(text: str | Sequence[str], limit: int = 200) -> str:
    shown = text if isinstance(text, str) else " ".join(text)
    return shown if len(shown) <= limit else shown[:limit] + "..."


def shown(value: object) -> str:
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that is deep
        return "a value that is too long to be shown"
