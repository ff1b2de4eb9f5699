"""Judges answers by a sandbox elsewhere: `code_url`, an HTTP service that runs one program per request, as ROLL's.

Request: `code`, `language`, `stdin`, `expected_stdout`, `compile_timeout`, `run_timeout`. Reply: `status` (Success,
Failed or SandboxError) and `run_result` with `stdout`, `stderr`, `return_code`. A service that is down, or says
anything else, says nothing of the answer: that is an exception here, and not a 0.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from roll.rewards.code.cases import Budget, Cases, Tally, same_output, same_value, shorten
from roll.rewards.code.languages import PYTHON, Code, guest_source
from roll.rewards.code.local import suite_of
from roll.rewards.code.suites import Suite

ATTEMPTS = 3
PAUSE_S = 0.5  # before the second attempt; doubled before each further one
LONGEST_REPLY = 16 * 2**20
WAITING_S = 10.0  # for the service itself, beside the program's own time


class RemoteError(Exception):
    """The service gave no verdict."""


@dataclass(frozen=True)
class RemoteJudge:
    """`total_s` is for all requests of an answer; when it is over, the answer has no verdict: the service was slow."""

    url: str
    time_limit_s: float
    total_s: float

    @property
    def place(self) -> str:
        """The address without what may be a secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def judge(self, code: Code, cases: Cases, stop_early: bool) -> Tally:
        """Raises RemoteError if the service gives no verdict."""
        budget = Budget(self.total_s)
        tally = Tally(len(cases.stdin) or len(cases.calls) or len(cases.asserts), stop_early)
        if code.language != PYTHON and cases.kind != "stdin":
            tally.broken(f"the cases call Python, the answer is {code.language}")
        for at in range(tally.num_cases):
            if not tally.is_done:
                self._judge_case(code, cases, at, tally, budget)
        return tally

    def _judge_case(self, code: Code, cases: Cases, at: int, tally: Tally, budget: Budget) -> None:
        if cases.kind == "stdin":
            case = cases.stdin[at]
            reply = self._ask(code.language, budget, code.text, case.stdin, case.expected)
            right = reply.succeeded and same_output(reply.stdout, case.expected)
            tally.add(float(right), reply.why or f"expected {shorten(case.expected)!r}, got {shorten(reply.stdout)!r}")
        elif cases.kind == "function":
            call = cases.calls[at]
            program = calling(code.text, str(cases.function), call.arguments)
            reply = self._ask(code.language, budget, program)
            right = reply.succeeded and _has_value(reply.stdout, call.expected)
            tally.add(
                float(right), reply.why or f"expected {shorten(repr(call.expected))}, got {shorten(reply.stdout)!r}"
            )
        else:
            word = secrets.token_hex(16)
            program = together(code.text, suite_of(cases, at), cases.function, word)
            reply = self._ask(code.language, budget, program, expected=word)
            if "No module named 'pytest'" in reply.why:
                raise RemoteError(f"code_url {self.place} has no pytest, which the tests need: install it there")
            right = reply.succeeded and reply.stdout.rstrip().endswith(word)
            tally.add(float(right), reply.why or "ended before the asserts did")

    def _ask(self, language: str, budget: Budget, code: str, stdin: str = "", expected: str = "") -> Reply:
        body = {
            "code": code,
            "language": language,
            "stdin": stdin,
            "expected_stdout": expected,
            "compile_timeout": self.time_limit_s,
            "run_timeout": self.time_limit_s,
        }
        why = "no time was left"
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(max(0.0, min(PAUSE_S * 2 ** (attempt - 1), budget.left_s)))
            if budget.is_spent:
                break
            try:
                return read_reply(self._post(body, min(budget.left_s, 2 * self.time_limit_s + WAITING_S)))
            except (OSError, ValueError, RecursionError) as error:
                why = shorten(str(error) or type(error).__name__)
                if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 429):
                    break  # asking again would not help
        raise RemoteError(f"code_url {self.place} gave no verdict: {why}")

    def _post(self, body: Mapping[str, Any], timeout_s: float) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            text = response.read(LONGEST_REPLY + 1)
        if len(text) > LONGEST_REPLY:
            raise ValueError(f"a reply of more than {LONGEST_REPLY} bytes")
        return json.loads(text)


@dataclass(frozen=True)
class Reply:
    succeeded: bool
    stdout: str
    why: str


def read_reply(reply: Any) -> Reply:
    """Raises ValueError for what is no verdict."""
    status = reply.get("status") if isinstance(reply, Mapping) else None
    if status not in ("Success", "Failed"):
        message = reply.get("message", "") if isinstance(reply, Mapping) else reply
        raise ValueError(f"it replied with status {shorten(repr(status))}: {shorten(str(message))}")
    result = reply.get("run_result")
    result = result if isinstance(result, Mapping) else {}
    stdout, stderr = result.get("stdout") or "", result.get("stderr") or ""
    if not isinstance(stdout, str) or (status == "Success" and "stdout" not in result):
        raise ValueError("it replied with status Success and no run_result.stdout")
    return Reply(status == "Success", stdout, "" if status == "Success" else f"failed: {shorten(str(stderr)[-200:])}")


AS_MODULE = "__name__ = 'solution'\n"  # so that the answer's main block does not run
MARKER = "roll-result:"


def together(code: str, suite: Suite, function: str | None, word: str) -> str:
    """A program that prints the word if the tests pass: that of guest/alone.py, with what it imports and works on."""
    needed = ("names", "files", *(("runner",) if suite.collects else ()))
    guests = {name: guest_source(name).decode() for name in needed}
    file = json.dumps({**asdict(suite), "function": function})
    guests |= {"task": f"ANSWER, FILE, WORD = {code!r}, {file!r}, {word!r}"}
    return (
        "import sys, types\nsys.set_int_max_str_digits(0)\n"
        f"for _name, _source in {guests!r}.items():\n"
        "    sys.modules[_name] = _module = types.ModuleType(_name)\n"
        "    exec(compile(_source, _name + '.py', 'exec'), vars(_module))\n"
        f"{guest_source('alone').decode()}"
    )


def calling(code: str, function: str, arguments: object) -> str:
    """A program that prints what the function, of the module or its class Solution, returns."""
    encoded = json.dumps(json.dumps(arguments))
    return (
        f"{guest_source('names').decode()}\nglobals().update(common_names())\n{AS_MODULE}{code}\n"
        f"import json as _json\n_call = globals().get({function!r}) or getattr(Solution(), {function!r})\n"
        f"print('\\n{MARKER}' + _json.dumps(_call(*_json.loads({encoded}))))\n"
    )


def _has_value(stdout: str, expected: object) -> bool:
    _, marker, text = stdout.rpartition(MARKER)
    try:
        return bool(marker) and same_value(json.loads(text), expected)
    except (ValueError, RecursionError):
        return False
