"""Judges answers on this machine, in the sandbox."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roll.rewards.code.calls import judge_calls
from roll.rewards.code.cases import Cases
from roll.rewards.code.compare import same_output
from roll.rewards.code.extract import Code
from roll.rewards.code.languages import LANGUAGES, PROGRAM, PYTHON, Python, system_view
from roll.rewards.code.local import judge_asserts
from roll.rewards.code.starts import Starts
from roll.rewards.code.verdict import OUT_OF_TIME, Budget, Tally, shorten
from roll.utils.sandbox.job import BOX, Job, Limits
from roll.utils.sandbox.launch import Means
from roll.utils.sandbox.process import Finished, run

BEGUN = b"\x06"  # as guest/program.py has it


@dataclass(frozen=True)
class LocalJudge:
    """`limits` are those of a case, `total_s` is the time of all cases of an answer; what is left of them when it is
    over has not passed."""

    means: Means
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
            given = case.stdin.encode(errors="replace")
            finished = run(replace(job, limits=limits).with_stdin(given), self.means, given)
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
        limits = replace(job.limits, wall_s=min(job.limits.wall_s, budget.left_s), users=self.limits.users)
        finished = run(replace(job, limits=limits), self.means)
        if not finished.is_fine:
            why = finished.stderr.decode(errors="replace") if finished.ending == "exit" else finished.ending
            tally.broken(f"does not compile: {shorten(why, 500)}")
            return None
        return Job((f"{BOX}/{PROGRAM}",), system_view(), self.limits, {PROGRAM: finished.stdout})


def _begun(finished: Finished, starts: Starts) -> Finished:
    """What the answer itself has printed, after the mark of guest/program.py."""
    if not finished.stdout.startswith(BEGUN):
        return finished
    starts.begun()
    return replace(finished, stdout=finished.stdout.removeprefix(BEGUN))
