"""`reasoning_gym`: the score that a task of reasoning-gym itself gives an answer."""

import functools
import json
from typing import Any, Literal

from roll.rewards.base import RewardInput, RewardResult, requires
from roll.utils.answers.final_answer import last_tagged
from roll.utils.imports import resolve

Untagged = Literal["last_line", "whole", "nothing"]
_UNTAGGED = ("last_line", "whole", "nothing")


@requires("metadata", "generator")
class ReasoningGym:
    """The score from 0 to 1 of the last `<answer>` behind the thinking, by `score_answer` of the row's task.

    `untagged`: what is scored of a response without `<answer>`: its last line, the whole of it, or nothing, which
    scores 0 as in reasoning-gym's own training and in verifiers. An answer that makes `score_answer` raise scores 0 and
    counts in the metric `unreadable`.

    Example: chain_sum pays 1 for "<answer>17</answer>" and for "17"; of "it is 17" it pays the share of the
    characters that are right, 2 / 8.
    """

    def __init__(self, untagged: Untagged = "last_line"):
        if untagged not in _UNTAGGED:
            raise ValueError(f"untagged: {untagged!r} must be one of {', '.join(_UNTAGGED)}")
        self._untagged = untagged
        resolve("reasoning_gym:create_dataset")  # seconds, which are not to count as those of the first answer

    def __call__(self, sample: RewardInput) -> RewardResult:
        row = sample.payload
        tagged = last_tagged(sample.answer)
        answer = self._without_tags(sample.answer.strip()) if tagged is None else tagged
        entry = {"question": row.get("prompt"), "answer": row.get("ground_truth"), "metadata": row["metadata"]}
        metrics = {"answer_found": float(tagged is not None), "unreadable": 0.0}
        try:
            score = float(_task(json.dumps(row["generator"])).score_answer(answer, entry))
        except Exception as error:  # many a task parses an answer without a guard
            return RewardResult(0.0, metrics | {"unreadable": 1.0}, {"answer": answer, "error": repr(error)})
        return RewardResult(score, metrics, {"answer": answer})

    def _without_tags(self, text: str) -> str | None:
        if self._untagged == "nothing":
            return None
        return text if self._untagged == "whole" else text.rpartition("\n")[2].strip()


@functools.cache
def _task(settings: str) -> Any:
    create: Any = resolve("reasoning_gym:create_dataset")
    named = json.loads(settings)
    return create(named.pop("task"), seed=0, size=1, **named)
