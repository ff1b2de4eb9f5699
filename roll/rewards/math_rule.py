"""`math_rule`: is the final answer mathematically equal to the reference? Decided by math-verify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.utils.answers.final_answer import boxed_answer, has_open_box
from roll.utils.answers.math_equal import MathEqual
from roll.utils.answers.prose import answer_in_prose, own_words
from roll.utils.answers.truths import references, truth_problem


def problem_of(row: Mapping[str, Any]) -> str | None:
    """Return the problem of the row's reference answer, None if it is valid."""
    problem = truth_problem(row.get("ground_truth"))
    return None if problem is None else f"its ground truth {problem}"


@requires("ground_truth")
@checks_rows(problem_of)
class MathRule:
    r"""1 if the answer equals the ground truth, `wrong` if not.

    The answer is the last `\boxed{}` after the thinking, or else the last number there, with
    what makes it one of two or denies it ("4 or 5", "not 5"). Thinking that never ends, and a last box that is never
    closed, hold no answer. The ground truth may be a number, LaTeX, or a worked solution: its last `\boxed{}` counts,
    or what follows the last `####`, or all of it. Any of a list is right. With `require_boxed` an answer outside a box
    does not count. `tolerance`: how far decimals may be off, relatively (MathEqual).
    """

    def __init__(self, require_boxed: bool = False, tolerance: float | None = None, wrong: float = 0.0):
        self._equal = MathEqual(tolerance)
        self._require_boxed, self._wrong = require_boxed, wrong

    def __call__(self, sample: RewardInput) -> RewardResult:
        if sample.ground_truth is None or (isinstance(sample.ground_truth, str) and not sample.ground_truth.strip()):
            raise ValueError("the row has no ground_truth")
        text = own_words(sample.answer)
        boxed = boxed_answer(text)
        answer = boxed if boxed is not None or self._require_boxed or has_open_box(text) else answer_in_prose(text)
        metrics = {"answer_found": float(answer is not None), "boxed": float(boxed is not None)}
        truths = references(sample.ground_truth)
        correct = answer is not None and any(self._equal(truth, answer) for truth in truths)
        return RewardResult(1.0 if correct else self._wrong, metrics, {"answer": answer})
