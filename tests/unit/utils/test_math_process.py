"""Comparisons from threads: a slow one holds up nobody else. Processes take seconds to start, so there is one test."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from roll.utils.answers.math_equal import MathEqual
from roll.utils.answers.processes import MathProcesses

SLOW = r"\sum_{i=1}^{10^9} \sin(i)"
HOUR_S = 3600.0


def test_threads_compare_beside_a_slow_comparison_which_is_wrong_and_no_failure() -> None:
    """While the slow one runs others get their verdicts: from text alone at once, else from a process of their own."""
    equal = MathProcesses(limit_s=HOUR_S, most=2)
    with ThreadPoolExecutor(3) as pool:
        assert pool.submit(equal, r"\sqrt{4}", "2").result(60)
        waiting = pool.submit(equal, "5", SLOW)
        assert pool.submit(equal, "5", "5.0").result(60)
        assert pool.submit(equal, r"x^2+1", "1+x^2").result(60)
        assert not pool.submit(equal, r"x^2+1", "1+x^3").result(60)
        with pytest.raises(ValueError, match="cannot be read as mathematics"):
            pool.submit(equal, "$", "x+1").result(60)
        assert not waiting.done()
        equal.close()
        assert waiting.result(60) is False


def test_a_process_that_computes_on_beyond_its_limit_is_ended() -> None:
    """`factorial` computes for minutes without a chance to interrupt it."""
    program = "import math, time\nfrom roll.utils.answers.processes import limit_cpu\n"
    program += "limit_cpu(time.process_time() + 1)\nmath.factorial(10**8)"
    assert subprocess.run([sys.executable, "-c", program], timeout=240).returncode == -signal.SIGXCPU


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [(r"\,0.5\,", True), ("\u00bd", True), (r"\frac12 or 0.5", True), (r"\frac12 or 0.6", False), ("0.6", False)],
)
def test_a_thread_gets_the_verdict_of_math_rule(answer: str, is_right: bool) -> None:
    """Also at sight, before a process is asked."""
    compare = MathProcesses()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(compare, "0.5", answer).result() is is_right
    compare.close()
    assert MathEqual()("0.5", answer) is is_right
