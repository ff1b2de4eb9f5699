"""`code_sandbox`: does the program in the answer pass the row's cases?"""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.code.cases import COLUMNS, TRUTH, Judge, problem_of, read_cases, shorten
from roll.rewards.code.languages import LANGUAGES, code_in, fences_of, find_python, missing
from roll.rewards.code.local import LocalJudge
from roll.rewards.code.remote import RemoteJudge
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import Limits, checked_users
from roll.utils.sandbox.process import SandboxError, run

STARTING = Limits(cpu_s=60, wall_s=300)
WAITING = 3  # a case may take as many times its CPU time, since it shares the machine


@checks_rows(problem_of)
@requires(*COLUMNS)
class CodeSandbox:
    """1 if the program passes all cases of the row, 0 if not; with `reward_type: soft` the share that it passes.

    The program is the last fenced block of one of `languages` after the thinking; with `plain` an answer without
    a fence is one of the first language. `time_limit_s` is CPU time of a case, `total_time_s` wall time of all cases of
    an answer, by default two thirds of `timeout_s`; the other limits are those of a case as well. `python` is the
    interpreter of answers, with the packages that it has; without it they have the standard library alone.
    `sandbox_uids`: first and last number of the users that answers run as where root sets the sandbox up.
    """

    def __init__(
        self,
        use_local: bool = True,
        code_url: str | None = None,
        languages: Sequence[str] = ("python",),
        reward_type: str = "hard",
        plain: bool = False,
        python: str | None = None,
        time_limit_s: float = 5.0,
        total_time_s: float | None = None,
        memory_mb: int = 1024,
        disk_mb: int = 64,
        output_mb: int = 4,
        threads: int = 64,
        sandbox_uids: Sequence[int] | None = None,
        timeout_s: float = 30.0,
    ):
        self._languages = _checked_languages(languages)
        limits = _checked_limits(time_limit_s, memory_mb, disk_mb, output_mb, threads)
        limits = replace(limits, users=checked_users(sandbox_uids))
        if reward_type not in ("hard", "soft"):
            raise ValueError(f"reward_type: {reward_type!r} is neither hard nor soft")
        total_s = timeout_s * 2 / 3 if total_time_s is None else total_time_s
        if not 0 < total_s < timeout_s:
            raise ValueError(f"total_time_s: {total_s:g} is not between 0 and timeout_s, which is {timeout_s:g}")
        self._is_soft, self._plain = reward_type == "soft", plain
        self._judge: Judge
        if use_local:
            self._judge = _local_judge(self._languages, python, limits, total_s)
        else:
            self._judge = RemoteJudge(_checked_url(code_url), time_limit_s, total_s)

    def __call__(self, sample: RewardInput) -> RewardResult:
        cases = read_cases({**sample.payload, TRUTH: sample.ground_truth})
        plain = self._languages[0] if self._plain else None
        code = code_in(sample.response_text, fences_of(self._languages), plain)
        if code is None:
            return RewardResult(0.0, {"code_found": 0.0, "passed_fraction": 0.0}, {"why": "no code in the response"})
        tally = self._judge.judge(code, cases, stop_early=not self._is_soft)
        all_passed = float(tally.passed == 1)
        metrics = {
            "code_found": 1.0,
            "passed_fraction": tally.passed,
            "all_passed": all_passed,
            "runs": float(tally.compiled),
            "timed_out": float(tally.out_of_time > 0),
        }
        score = tally.passed if self._is_soft else all_passed
        return RewardResult(score, metrics, {"language": code.language, "why": tally.first})


def _checked_languages(languages: Sequence[str]) -> tuple[str, ...]:
    names = (languages,) if isinstance(languages, str) else tuple(languages)
    unknown = [name for name in names if name not in LANGUAGES]
    if unknown or not names:
        raise ValueError(f"languages: {', '.join(map(repr, unknown)) or 'none'}; there are {', '.join(LANGUAGES)}")
    return names


def _checked_limits(time_limit_s: float, memory_mb: int, disk_mb: int, output_mb: int, threads: int) -> Limits:
    values = {
        "time_limit_s": time_limit_s,
        "memory_mb": memory_mb,
        "disk_mb": disk_mb,
        "output_mb": output_mb,
        "threads": threads,
    }
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{name}: {value!r} is no number above 0")
    whole = {name: int(value) for name, value in values.items() if name != "time_limit_s"}
    return Limits(
        cpu_s=time_limit_s,
        wall_s=WAITING * time_limit_s,
        memory_mb=whole["memory_mb"],
        disk_mb=whole["disk_mb"],
        output_bytes=whole["output_mb"] * 2**20,
        threads=whole["threads"],
    )


def _local_judge(languages: tuple[str, ...], python: str | None, limits: Limits, total_s: float) -> LocalJudge:
    absent = missing(languages)
    if absent:
        raise ValueError("; ".join(absent))
    try:
        interpreter = find_python(python)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"python: {python} cannot be started: {error}") from error
    try:
        means = find_means(*interpreter.shown, users=limits.users)
        started = run(interpreter.job("program", b"", replace(STARTING, users=limits.users)), means)
    except SandboxUnavailable as error:
        raise ValueError(f"{error}. Or set use_local: false, and code_url to a sandbox elsewhere") from error
    except SandboxError as error:
        raise ValueError(str(error)) from error
    if not started.is_fine:
        why = started.stderr.decode(errors="replace").strip() or f"{started.ending} {started.code}"
        raise ValueError(f"python: {interpreter.command[0]} does not start in the sandbox: {shorten(why)}")
    return LocalJudge(means, interpreter, limits, total_s)


def _checked_url(url: str | None) -> str:
    if url is None:
        raise ValueError("use_local is false and code_url is not set: give the address of a sandbox")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("code_url is no address of the form https://host/path")
    return url
