"""`countdown`: does the calculation in the answer hit the target with the numbers that were given?"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.utils.answers.calculations import CalculationProblem, evaluate
from roll.utils.answers.final_answer import last_tagged
from roll.utils.truths import as_data

Use = Literal["all", "some"]
_NUMBERS = ("numbers", "nums")


def problem_of(row: Mapping[str, Any]) -> str | None:
    try:
        _task(row.get("ground_truth"), row)
    except ValueError as error:
        return str(error)
    return None


@requires(("ground_truth", "target"))
@checks_rows(problem_of)
class Countdown:
    """1 if the last `<answer>` behind the thinking is a calculation with the target as its value and the given numbers
    in it, each once; `format_score` for any other `<answer>`, 0 without one.

    A calculation has whole numbers, + - * / and parentheses, and is computed exactly. With `use: some` a number may be
    left out. The ground truth is a mapping of `target` and `numbers` (or `nums`), as data or as JSON text; rows without
    one have these as columns.

    Example: numbers 3, 5, 2 and target 16: "<answer>(3 + 5) * 2</answer>" scores 1.
    Source: TinyZero (https://github.com/Jiayi-Pan/TinyZero), whose `format_score` is .1.
    """

    def __init__(self, format_score: float = 0.0, use: Use = "all"):
        if use not in ("all", "some"):
            raise ValueError(f"use: {use!r} must be all or some")
        self._format_score = float(format_score)
        self._uses_all = use == "all"

    def __call__(self, sample: RewardInput) -> RewardResult:
        target, numbers = _task(sample.ground_truth, sample.payload)
        answer = last_tagged(sample.answer)
        correct = answer is not None and self._hits(answer, target, numbers)
        score = 1.0 if correct else self._format_score if answer is not None else 0.0
        return RewardResult(score, {"answer_found": float(answer is not None)}, {"answer": answer})

    def _hits(self, answer: str, target: int, numbers: Counter[int]) -> bool:
        try:
            value, used = evaluate(answer)
        except CalculationProblem:
            return False
        counts = Counter(used)
        return value == target and (counts == numbers if self._uses_all else counts <= numbers)


def _task(truth: object, row: Mapping[str, Any]) -> tuple[int, Counter[int]]:
    """The target, and how often each number is given. Raises ValueError that says what is wrong."""
    truth = as_data(truth)
    task = truth if isinstance(truth, Mapping) else row
    name = next((name for name in _NUMBERS if task.get(name) is not None), "numbers")
    target, numbers = _whole(task.get("target")), task.get(name)
    if target is None:
        where = "its ground truth" if isinstance(truth, Mapping) else "the row"
        raise ValueError(f"{where} has no whole number as `target`: a countdown has a target and numbers")
    whole_numbers = [_whole(number) for number in numbers] if isinstance(numbers, Sequence) and numbers else [None]
    if isinstance(numbers, str) or None in whole_numbers:
        raise ValueError(f"`{name}` must be a list of whole numbers, and is {numbers!r:.100}")
    return target, Counter(number for number in whole_numbers if number is not None)


def _whole(value: object) -> int | None:
    """The value as a whole number, also if it is 24.0 as in data frames; None otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value % 1:
        return None
    return int(value)
