"""`math_rule`: is the final answer mathematically equal to the reference? Decided by math-verify."""

from functools import partial

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.utils.answers.final_answer import answer_in_prose, boxed_answer, has_open_box
from roll.utils.answers.math_equal import MathEqual, reference
from roll.utils.truths import truth_problem


@requires("ground_truth")
@checks_rows(partial(truth_problem, may_be_json=False))
class MathRule:
    r"""1 if the answer equals the ground truth, `wrong` if not.

    The answer is the last `\boxed{}` after the thinking, else the value behind the last "answer is" or `####`, else the
    last number, with what makes it one of two or denies it ("4 or 5", "not 5"). Thinking that never ends, and a last
    box that is never closed, hold no answer. The ground truth may be a number, LaTeX, or a worked solution: its last
    `\boxed{}` counts, or what follows the last `####`, or all of it. Any of a list is right. With `require_boxed` an
    answer outside a box does not count. `tolerance`: how far decimals may be off, relatively (MathEqual).
    """

    def __init__(self, require_boxed: bool = False, tolerance: float | None = None, wrong: float = 0.0):
        self._equal = MathEqual(tolerance)
        self._require_boxed, self._wrong = require_boxed, wrong

    def __call__(self, sample: RewardInput) -> RewardResult:
        text = sample.answer
        boxed = boxed_answer(text)
        answer = boxed if boxed is not None or self._require_boxed or has_open_box(text) else answer_in_prose(text)
        metrics = {"answer_found": float(answer is not None), "boxed": float(boxed is not None)}
        truths = map(reference, sample.accepted)
        correct = answer is not None and any(self._equal(truth, answer) for truth in truths)
        return RewardResult(1.0 if correct else self._wrong, metrics, {"answer": answer})
