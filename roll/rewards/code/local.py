"""Cases that are asserts or test functions: the tests run in one sandbox and the answer in another.

They share two pipes, over which calls and results travel (guest/remote.py). So the tests' text and the values that they
expect are out of the answer's reach, and a verdict comes from the tests' side alone.
"""

import json
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from roll.rewards.code.cases import (
    CASES,
    GRACE_S,
    OUT_OF_TIME,
    BadCases,
    Budget,
    Cases,
    Tally,
    same_output,
    same_value,
    shorten,
    shown,
)
from roll.rewards.code.guest.wire import plain
from roll.rewards.code.languages import LANGUAGES, PROGRAM, PYTHON, Code, Python, system_view
from roll.rewards.code.suites import Suite, read_suite
from roll.utils.sandbox.job import BOX, Job, Limits, Namespaces
from roll.utils.sandbox.lines import Ended, Lines, OutOfTime
from roll.utils.sandbox.process import SIGNALLED, Finished, Process, SandboxError, run

# Starts of the processes that judge an answer, and whose doing it is when one ends early.
#
# A process says when it has begun, before it runs anything of the answer. What ends before is the machine's doing: it
# is started again, and after a few times there is no verdict. What ends later is the answer's doing, and it has failed.
# Since the word comes first, and each process is gone before the next starts, no answer can choose between the two.

STARTS = 3  # in a row, of which none got to the answer
LOADS = 2  # that end while the answer is loaded: a machine without memory does that, too

Stage = Literal["starting", "loading", "running"]


class Starts:
    def __init__(self) -> None:
        self.stage: Stage = "starting"
        self._any_begun = False
        self._failed_starts = self._failed_loads = 0

    def start(self) -> None:
        self.stage = "starting"

    def begun(self) -> None:
        self.stage, self._any_begun, self._failed_starts = "loading", True, 0

    def loaded(self) -> None:
        self.stage = "running"

    def ended(self, tally: Tally, why: str) -> bool:
        """Handle the end of the process; returns whether it came before the answer ran. Raises SandboxError."""
        if self.stage == "starting":
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise SandboxError(f"ended {STARTS} times before anything of the answer ran: {shorten(why, 500)}")
        elif self.stage == "loading":
            self._failed_loads += 1
            if self._failed_loads >= LOADS:
                tally.broken(f"ended while it was loaded: {why}")
        return self.stage != "running"

    def out_of_time(self, tally: Tally, budget_is_spent: bool) -> bool:
        """Likewise of one that took too long. Of an answer that has used up its time itself a late start is no
        failure."""
        if self.stage == "starting" and not (budget_is_spent and self._any_begun):
            return self.ended(tally, "it did not start in time")
        if self.stage == "loading":
            tally.broken("took too long to load", out_of_time=True)
            return True
        return False

    def check_begun(self) -> None:
        """Raises SandboxError if all the time is over, and nothing of the answer ran."""
        if not self._any_begun:
            raise SandboxError("the sandbox did not start within total_time_s: the machine has too much to do")


# Cases that call a function: arguments go into the sandbox, what comes out is compared here.

NO_TIME_LEFT = SIGNALLED + signal.SIGXCPU


def judge_calls(
    means: Namespaces, python: Python, limits: Limits, source: bytes, cases: Cases, tally: Tally, budget: Budget
) -> None:
    """One process has the answer and gets case after case; if it ends, or takes too long, that case has failed and the
    next has a new one. Raises SandboxError if the process does not get as far as the answer."""
    starts = Starts()
    while not tally.is_done:
        if budget.is_spent:
            starts.check_begun()
            tally.add(0.0, OUT_OF_TIME, out_of_time=True)
            continue
        job = python.job("answer", source, answer_limits(limits, budget), str(cpu_s(limits)))
        starts.start()
        with Process(job, means) as process:
            lines = Lines(process.stdout.fileno(), process.stdin.fileno(), limits.output_bytes)
            try:
                _run_calls(lines, limits, cases, tally, budget, starts)
            except OutOfTime:
                if not starts.out_of_time(tally, budget.is_spent):
                    tally.add(0.0, "took too long", out_of_time=True)
            except Ended as ended:
                why, code = how_it_ended(process, starts, str(ended))
                if not starts.ended(tally, why):
                    tally.add(0.0, why, out_of_time=code == NO_TIME_LEFT)


def how_it_ended(process: Process, starts: Starts, said: str) -> tuple[str, int | None]:
    """How the process ended, in words, and its exit code. Raises SandboxError if the sandbox failed, and not the code
    in it."""
    try:
        code = process.exit_code(GRACE_S)
    except SandboxError as error:
        if starts.stage != "starting":
            raise
        return f"{error} {process.errors()}", None
    how = "it closed its channel" if code is None else f"its process ended with code {code}"
    return "; ".join(filter(None, (said, how, process.errors() if starts.stage == "starting" else ""))), code


def _run_calls(lines: Lines, limits: Limits, cases: Cases, tally: Tally, budget: Budget, starts: Starts) -> None:
    _reply(lines, case_deadline(limits, budget))
    starts.begun()
    deadline = case_deadline(limits, budget)
    lines.send(["load"], deadline)
    if (loaded := _reply(lines, deadline))[0] != "ok":
        tally.broken(_error(loaded))
    starts.loaded()
    while not tally.is_done and not budget.is_spent:
        case, deadline = cases.calls[len(tally.shares)], case_deadline(limits, budget)
        lines.send(["begin"], deadline)
        _reply(lines, deadline)
        lines.send(["solve", cases.function, plain(case.arguments, _refuse)], deadline)
        reply = _reply(lines, deadline)
        if reply[0] != "ok":
            tally.add(0.0, _error(reply))
            continue
        right, got = _compare(reply[1:], case.expected)
        if not right and case.may_be_item:
            right, got = _compare(reply[1:], case.expected[0])
        tally.add(float(right), f"expected {shown(case.expected)}, got {got}")


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no plain data")


def answer_limits(limits: Limits, budget: Budget) -> Limits:
    """Limits of a process that serves many cases. Each case begins with a limit of its own, see guest/answer.py."""
    return replace(limits, cpu_s=max(budget.left_s, 1.0) + limits.cpu_s)


def cpu_s(limits: Limits) -> int:
    return max(1, -int(-limits.cpu_s // 1))


def case_deadline(limits: Limits, budget: Budget) -> float:
    return time.monotonic() + min(limits.wall_s, max(budget.left_s, 0.01))


def _reply(lines: Lines, deadline: float) -> list[Any]:
    message = lines.receive(deadline)
    if not isinstance(message, list) or not message:
        raise Ended("it sent no message")
    return message


def _error(reply: list[Any]) -> str:
    return shorten(" ".join(str(part[0] if isinstance(part, list) and part else part) for part in reply[1:3]), 300)


def _compare(values: list[Any], expected: object) -> tuple[bool, str]:
    try:
        got = as_json(values[0])
        return same_value(got, expected), shown(got)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        return False, f"no plain data ({error})"


def as_json(message: Any) -> Any:
    """The value behind a reply, of what JSON can hold; see guest/wire.py. Raises ValueError for all else."""
    if not isinstance(message, list):
        return message
    mark, *rest = message
    if mark in ("l", "t", "q"):
        return [as_json(item) for item in rest]
    if mark == "n":  # a named tuple: its class, the names, the items
        return [as_json(item) for item in rest[3:]]
    if mark == "D":
        mark, rest = "d", rest[1:]
    if mark in ("d", "C", "O"):
        return {_key(as_json(key)): as_json(item) for key, item in rest}
    if mark == "i":
        return int(rest[0], 16)
    raise ValueError(f"a {mark}" if isinstance(mark, str) else "no message")


def _key(key: Any) -> str | int | float | bool | None:
    if isinstance(key, list | dict):
        raise ValueError("a key that is a list")
    return key


class _Files:
    """The outcomes of the test functions, file by file; None for one that does not count. `units` is their number, None
    until the file was loaded."""

    def __init__(self, tally: Tally):
        self._tally = tally
        self.units: int | None = None
        self.outcomes: list[bool | None] = []
        self._why = ""

    @property
    def place(self) -> tuple[int, int]:
        """The file to go on with, and its functions that are judged already."""
        return len(self._tally.shares), len(self.outcomes)

    def load(self, units: int) -> None:
        self.units = units

    def unit(self, passed: bool | None, why: str, out_of_time: bool = False) -> None:
        self.outcomes.append(passed)
        self._why = self._why or (why if passed is False else "")
        self._tally.out_of_time += out_of_time
        if self.units is not None and len(self.outcomes) >= self.units:
            counted = [outcome for outcome in self.outcomes if outcome is not None]
            self.file(sum(counted) / max(1, len(counted)), self._why or "its tests skip themselves")

    def file(self, share: float, why: str) -> None:
        self._tally.add(share, why)
        self.units, self.outcomes, self._why = None, [], ""

    def stopped(self, why: str, out_of_time: bool = False) -> None:
        """The function, or the file, that was running when its processes ended."""
        if self.units:
            self.unit(False, why, out_of_time)
        else:
            self._tally.out_of_time += out_of_time
            self.file(0.0, why)


def judge_asserts(
    means: Namespaces, python: Python, limits: Limits, source: bytes, cases: Cases, tally: Tally, budget: Budget
) -> None:
    """One pair of processes judges test after test; if one of them ends, or a test takes too long, that test has failed
    and the next has a new pair. Raises BadCases if the tests themselves cannot judge, SandboxError if the pair does not
    get as far as the answer."""
    progress, starts = _Files(tally), Starts()
    suites = [asdict(suite_of(cases, at)) for at in range(len(cases.asserts))]
    task = {"files": suites, "function": cases.function}
    while not tally.is_done:
        if budget.is_spent:
            starts.check_begun()
            progress.stopped(OUT_OF_TIME, out_of_time=True)
            continue
        starts.start()
        place = progress.place
        with ExitStack() as stack:
            request = json.dumps({**task, "start": place}).encode()
            answer, tests = _start(stack, means, python, limits, source, request, budget)
            try:
                _run_tests(Lines(tests.stderr.fileno()), limits, tally, progress, budget, starts)
                if not tally.compiled:
                    _check(answer, tests)
                elif progress.place == place and not tally.is_done:
                    progress.stopped("the answer's process ended")
            except OutOfTime:
                if not starts.out_of_time(tally, budget.is_spent):
                    progress.stopped("took too long", out_of_time=True)
            except Ended as ended:
                why = str(ended)
                if starts.stage == "running":
                    _check(answer, tests)
                else:
                    ends = (how_it_ended(process, starts, text)[0] for process, text in ((tests, why), (answer, "")))
                    why = "; ".join(ends)
                if not starts.ended(tally, why):
                    progress.stopped("its process ended")


def suite_of(cases: Cases, at: int) -> Suite:
    try:
        return read_suite(cases.asserts[at], cases.function)
    except ValueError as error:
        raise BadCases(f"case {at + 1} of column {CASES!r} cannot be run: it {error}") from error


def _start(
    stack: ExitStack, means: Namespaces, python: Python, limits: Limits, source: bytes, task: bytes, budget: Budget
) -> tuple[Process, Process]:
    """Both wait for each other before anything of the answer runs."""
    to_answer, to_tests = os.pipe(), os.pipe()
    ends = (*to_answer, *to_tests)
    try:
        both = answer_limits(limits, budget)
        answer_job = python.job("answer", source, both, str(cpu_s(limits)))
        tests_job = python.job("checker", b"", both, cases__json=task)
        answer = stack.enter_context(Process(answer_job, means, to_answer[0], to_tests[1]))
        tests = stack.enter_context(Process(tests_job, means, to_tests[0], to_answer[1]))
    finally:
        for end in ends:
            os.close(end)
    return answer, tests


def _run_tests(lines: Lines, limits: Limits, tally: Tally, progress: _Files, budget: Budget, starts: Starts) -> None:
    while not tally.is_done:
        message: list[Any] = lines.receive(case_deadline(limits, budget))
        match message:
            case ["ready"]:
                starts.begun()
            case ["broken", why]:
                tally.broken(str(why))
            case ["gone"]:
                raise Ended
            case ["loaded"]:
                starts.loaded()
            case ["fault", index, why]:
                raise BadCases(f"case {index + 1} of column {CASES!r} cannot be run: {why}")
            case ["file", _, passed, why]:
                progress.file(float(passed), str(why))
            case ["units", _, count]:
                progress.load(count)
            case ["unit", _, passed, why]:
                progress.unit(passed, str(why))
            case ["again"]:  # the answer's process is gone, and the test that it was in has failed
                return
            case _:
                raise Ended


def _check(answer: Process, tests: Process) -> None:
    for process in (tests, answer):
        process.exit_code(GRACE_S)


# Judges answers on this machine, in the sandbox.

BEGUN = b"\x06"  # as guest/program.py has it


@dataclass(frozen=True)
class LocalJudge:
    """`limits` are those of a case, `total_s` is the time of all cases of an answer; what is left of them when it is
    over has not passed."""

    means: Namespaces
    python: Python
    limits: Limits
    total_s: float

    def judge(self, code: Code, cases: Cases, stop_early: bool) -> Tally:
        """Raises SandboxError if the sandbox fails, BadCases if the row's tests do."""
        source, budget = code.text.encode(errors="replace"), Budget(self.total_s)
        if cases.kind == "stdin":
            tally = Tally(len(cases.stdin), stop_early)
            self._run_cases(code.language, source, cases, tally, budget)
            return tally
        tally = Tally(len(cases.calls) or len(cases.asserts), stop_early)
        if code.language != PYTHON:
            tally.broken(f"the cases call Python, the answer is {code.language}")
        elif cases.kind == "function":
            judge_calls(self.means, self.python, self.limits, source, cases, tally, budget)
        else:
            judge_asserts(self.means, self.python, self.limits, source, cases, tally, budget)
        return tally

    def _run_cases(self, language: str, source: bytes, cases: Cases, tally: Tally, budget: Budget) -> None:
        job = self._program(language, source, tally, budget)
        if job is None:
            return
        starts = Starts()
        while not tally.is_done:
            if budget.is_spent:
                starts.check_begun()
                tally.add(0.0, OUT_OF_TIME, out_of_time=True)
                continue
            case = cases.stdin[len(tally.shares)]
            limits = replace(self.limits, wall_s=min(self.limits.wall_s, max(budget.left_s, 0.01)))
            starts.start()
            input_bytes = case.stdin.encode(errors="replace")
            finished = run(replace(job, limits=limits).with_stdin(input_bytes), self.means, input_bytes)
            finished = _begun(finished, starts) if language == PYTHON else finished
            if language != PYTHON or starts.stage != "starting":
                self._judge_output(finished, case.expected, tally)
            elif finished.ending == "time":
                if not starts.out_of_time(tally, budget.is_spent):
                    tally.add(0.0, OUT_OF_TIME, out_of_time=True)
            else:
                starts.ended(tally, f"exit {finished.code}: {finished.stderr.decode(errors='replace')[-500:]}")

    def _judge_output(self, finished: Finished, expected: str, tally: Tally) -> None:
        if finished.ending != "exit":
            tally.add(0.0, f"ended by its limit of {finished.ending}", finished.ending == "time")
        elif finished.code != 0:
            tally.add(0.0, f"exit {finished.code}: {shorten(finished.stderr.decode(errors='replace')[-200:])}")
        else:
            got = finished.stdout.decode(errors="replace")
            right = same_output(got, expected)
            tally.add(float(right), f"expected {shorten(expected)!r}, got {shorten(got)!r}")

    def _program(self, language: str, source: bytes, tally: Tally, budget: Budget) -> Job | None:
        """The job that runs the answer, without input; None if it does not compile."""
        compiling = LANGUAGES[language].compiling
        if compiling is None:
            limits = replace(self.limits, output_bytes=self.limits.output_bytes + len(BEGUN))
            return self.python.job("program", source, limits)
        job = compiling(source)
        limits = replace(job.limits, wall_s=min(job.limits.wall_s, budget.left_s))
        finished = run(replace(job, limits=limits), self.means)
        if not finished.is_fine:
            why = finished.stderr.decode(errors="replace") if finished.ending == "exit" else finished.ending
            tally.broken(f"does not compile: {shorten(why, 500)}")
            return None
        return Job((f"{BOX}/{PROGRAM}",), system_view(), self.limits, {PROGRAM: finished.stdout})


def _begun(finished: Finished, starts: Starts) -> Finished:
    """Return the answer's own output, after the mark of guest/program.py."""
    if not finished.stdout.startswith(BEGUN):
        return finished
    starts.begun()
    return replace(finished, stdout=finished.stdout.removeprefix(BEGUN))
