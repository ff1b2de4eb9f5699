"""`math_rule`: is the final answer mathematically equal to the reference? Decided by math-verify."""

from __future__ import annotations

from roll.pipeline.rlvr.rewards.base import RewardInput, RewardResult, requires
from roll.utils.answers import after_thinking, has_open_box, last_boxed, last_number
from roll.utils.math_equal import MathEqual, reference


@requires("ground_truth")
class MathRule:
    r"""1 if the answer equals the ground truth, 0 if not.

    The answer is the last `\boxed{}` after the last `</think>` (if there is one), or else the last number there.
    Thinking that never ends, and a last box that is never closed, hold no answer. The ground truth may be a number,
    LaTeX, or a worked solution: its last `\boxed{}` counts, or what follows the last `####`, or all of it. With
    `require_boxed` an answer outside a box does not count.
    """

    def __init__(self, require_boxed: bool = False):
        self._equal = MathEqual()
        self._require_boxed = require_boxed

    def __call__(self, sample: RewardInput) -> RewardResult:
        if sample.ground_truth is None or str(sample.ground_truth).strip() == "":
            raise ValueError("the row has no ground_truth")
        text = after_thinking(sample.response_text, sample.prompt_text)
        boxed = last_boxed(text)
        answer = boxed if boxed is not None or self._require_boxed or has_open_box(text) else last_number(text)
        metrics = {"answer_found": float(answer is not None), "boxed": float(boxed is not None)}
        correct = answer is not None and self._equal(reference(str(sample.ground_truth)), answer)
        return RewardResult(float(correct), metrics, {"answer": answer})
