"""Cases that call a function: arguments go into the sandbox, what comes out is compared here."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

from roll.rewards.code.cases import Cases
from roll.rewards.code.compare import same_value
from roll.rewards.code.guest.wire import plain
from roll.rewards.code.languages import Python
from roll.rewards.code.lines import Ended, Lines, OutOfTime
from roll.rewards.code.starts import Starts
from roll.rewards.code.verdict import GRACE_S, OUT_OF_TIME, Budget, Tally, shorten, shown
from roll.utils.sandbox.job import Limits
from roll.utils.sandbox.launch import Means
from roll.utils.sandbox.process import SIGNALLED, Process, SandboxError

NO_TIME_LEFT = SIGNALLED + signal.SIGXCPU


def judge_calls(
    means: Means, python: Python, limits: Limits, source: bytes, cases: Cases, tally: Tally, budget: Budget
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
                _go_on(lines, limits, cases, tally, budget, starts)
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


def _go_on(lines: Lines, limits: Limits, cases: Cases, tally: Tally, budget: Budget, starts: Starts) -> None:
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
