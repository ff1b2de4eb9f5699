"""Cases that are asserts or test functions: the tests run in one sandbox and the answer in another.

They share two pipes, over which calls and results travel (guest/remote.py). So the tests' text and the values that they
expect are out of the answer's reach, and a verdict comes from the tests' side alone.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from roll.rewards.code.calls import answer_limits, case_deadline, cpu_s, how_it_ended
from roll.rewards.code.cases import CASES, BadCases, Cases
from roll.rewards.code.languages import Python
from roll.rewards.code.lines import Ended, Lines, OutOfTime
from roll.rewards.code.starts import Starts
from roll.rewards.code.suites import Suite, read_suite
from roll.rewards.code.verdict import GRACE_S, OUT_OF_TIME, Budget, Tally
from roll.utils.sandbox.job import Limits
from roll.utils.sandbox.launch import Means
from roll.utils.sandbox.process import Process


class _Files:
    """The outcomes of the test functions, file by file. `units` is their number, None until the file was loaded."""

    def __init__(self, tally: Tally):
        self._tally = tally
        self.units: int | None = None
        self.outcomes: list[bool] = []
        self._why = ""

    @property
    def place(self) -> tuple[int, int]:
        """The file to go on with, and its functions that are judged already."""
        return len(self._tally.shares), len(self.outcomes)

    def load(self, units: int) -> None:
        self.units = units

    def unit(self, passed: bool, why: str, out_of_time: bool = False) -> None:
        self.outcomes.append(passed)
        self._why = self._why or ("" if passed else why)
        self._tally.out_of_time += out_of_time
        if self.units is not None and len(self.outcomes) >= self.units:
            self.file(sum(self.outcomes) / len(self.outcomes), self._why)

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
    means: Means, python: Python, limits: Limits, source: bytes, cases: Cases, tally: Tally, budget: Budget
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
            asked = json.dumps({**task, "start": place}).encode()
            answer, tests = _start(stack, means, python, limits, source, asked, budget)
            try:
                _go_on(Lines(tests.stderr.fileno()), limits, tally, progress, budget, starts)
                if not tally.compiled:
                    _check(answer, tests)
                elif progress.place == place and not tally.is_done:
                    progress.stopped("the answer's process ended")
            except OutOfTime:
                if not starts.out_of_time(tally, budget.is_spent):
                    progress.stopped("took too long", out_of_time=True)
            except Ended as ended:
                why = _how_they_ended(answer, tests, starts, str(ended))
                if not starts.ended(tally, why):
                    progress.stopped("its process ended")


def suite_of(cases: Cases, at: int) -> Suite:
    """Raises BadCases if the text is no Python."""
    try:
        return read_suite(cases.asserts[at], cases.function)
    except ValueError as error:
        raise BadCases(f"case {at + 1} of column {CASES!r} cannot be run: it {error}") from error


def _start(
    stack: ExitStack, means: Means, python: Python, limits: Limits, source: bytes, task: bytes, budget: Budget
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


def _go_on(lines: Lines, limits: Limits, tally: Tally, progress: _Files, budget: Budget, starts: Starts) -> None:
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
            case ["trying", _]:  # a test without an answer, see guest/files.py
                pass
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


def _how_they_ended(answer: Process, tests: Process, starts: Starts, said: str) -> str:
    if starts.stage == "running":
        _check(answer, tests)
        return said
    return "; ".join(how_it_ended(process, starts, text)[0] for process, text in ((tests, said), (answer, "")))


def _check(answer: Process, tests: Process) -> None:
    """Raises SandboxError if it was a sandbox that ended, not what ran in it."""
    for process in (tests, answer):
        process.exit_code(GRACE_S)
