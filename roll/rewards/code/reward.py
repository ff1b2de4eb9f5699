"""`code_sandbox`: does the program in the answer pass the row's cases?"""

import subprocess
from collections.abc import Sequence
from urllib.parse import urlsplit

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.code.cases import COLUMNS, TRUTH, problem_of, read_cases, shorten
from roll.rewards.code.languages import LANGUAGES, code_in, fences_of, find_python, missing
from roll.rewards.code.local import LocalJudge
from roll.rewards.code.remote import RemoteJudge
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import Limits
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
        timeout_s: float = 30.0,
    ):
        self._languages = (languages,) if isinstance(languages, str) else tuple(languages)
        unknown = [name for name in self._languages if name not in LANGUAGES]
        if unknown or not self._languages:
            raise ValueError(f"languages: {', '.join(map(repr, unknown)) or 'none'}; there are {', '.join(LANGUAGES)}")
        numbers = {"time_limit_s": time_limit_s, "memory_mb": memory_mb, "disk_mb": disk_mb, "output_mb": output_mb}
        for name, value in {**numbers, "threads": threads}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"{name}: {value!r} is no number above 0")
        wall_s, output_bytes = WAITING * time_limit_s, int(output_mb) * 2**20
        limits = Limits(time_limit_s, wall_s, int(memory_mb), int(disk_mb), output_bytes, int(threads))
        if reward_type not in ("hard", "soft"):
            raise ValueError(f"reward_type: {reward_type!r} is neither hard nor soft")
        total_s = timeout_s * 2 / 3 if total_time_s is None else total_time_s
        if not 0 < total_s < timeout_s:
            raise ValueError(f"total_time_s: {total_s:g} is not between 0 and timeout_s, which is {timeout_s:g}")
        self._is_soft, self._plain = reward_type == "soft", plain
        if use_local:
            self._judge = _local_judge(self._languages, python, limits, total_s)
        else:
            parts = urlsplit(code_url or "")
            if code_url is None or parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(
                    "use_local is false, so code_url has to be the address of a sandbox, https://host/path"
                )
            self._judge = RemoteJudge(code_url, time_limit_s, total_s)

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


def _local_judge(languages: tuple[str, ...], python: str | None, limits: Limits, total_s: float) -> LocalJudge:
    absent = missing(languages)
    if absent:
        raise ValueError("; ".join(absent))
    try:
        interpreter = find_python(python)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"python: {python} cannot be started: {error}") from error
    try:
        means = find_means(*interpreter.shown)
        started = run(interpreter.job("program", b"", STARTING), means)
    except SandboxUnavailable as error:
        raise ValueError(f"{error}. Or set use_local: false, and code_url to a sandbox elsewhere") from error
    except SandboxError as error:
        raise ValueError(str(error)) from error
    if not started.is_fine:
        why = started.stderr.decode(errors="replace").strip() or f"{started.ending} {started.code}"
        raise ValueError(f"python: {interpreter.command[0]} does not start in the sandbox: {shorten(why)}")
    return LocalJudge(means, interpreter, limits, total_s)
