"""countdown against values that are computed by hand."""

import json
from typing import Any

import pytest

from roll.rewards.base import RewardInput
from roll.rewards.countdown import Countdown, problem_of

TASK = {"target": 16, "numbers": [3, 5, 2]}


def scored(answer: str, truth: Any = TASK, **args: Any) -> float:
    sample = RewardInput("", answer, ground_truth=truth, payload={} if truth else {"target": 16, "nums": [3, 5, 2]})
    return Countdown(**args)(sample).score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("so <answer>(3 + 5) * 2</answer>", 1.0),
        ("<answer>2*(5+3)</answer>", 1.0),
        ("<answer>1</answer> no, <answer> (3+5)*2 </answer>", 1.0),
        ("<think>a</think>\n<answer>(3+5)*2</answer>", 1.0),
        ("(3 + 5) * 2", 0.0),  # no answer
        ("<answer>(3 + 5) * 2", 0.0),
        ("<think><answer>(3 + 5) * 2</answer>", 0.0),  # the thinking never ends
        ("<answer>(3 + 5) * 2</answer> <answer>17</answer>", 0.1),
        ("<answer>16</answer>", 0.1),  # not of the numbers
        ("<answer>(3 + 5) * 2 * 1</answer>", 0.1),
        ("<answer>3 + 5 + 2 + 3 + 3</answer>", 0.1),  # one of them thrice
        ("<answer>(3 + 5) * 2 = 16</answer>", 0.1),
        ("<answer>2**(5-1)</answer>", 0.1),
        ("<answer>35 - 19</answer>", 0.1),
        ("<answer>3 / 0</answer>", 0.1),
        ("<answer>__import__('os').getpid()</answer>", 0.1),
        ("<answer></answer>", 0.1),
        ("<answer>" + "(" * 100_000 + "</answer>", 0.1),
        ("<answer>" + "9" * 100_000 + "</answer>", 0.1),
    ],
)
def test_an_answer_is_right_if_it_hits_the_target_with_each_number_once(answer: str, score: float) -> None:
    assert scored(answer, format_score=0.1) == score
    assert scored(answer) == (score if score != 0.1 else 0.0)


def test_numbers_may_be_left_out_and_fractions_are_exact() -> None:
    answer = "<answer>8 * 2</answer>"
    truth = {"target": 16, "numbers": [8, 2, 7]}
    assert (scored(answer, truth), scored(answer, truth, use="some")) == (0.0, 1.0)
    assert scored("<answer>8 + 8</answer>", truth, use="some") == 0.0, "once means once"
    with pytest.raises(ValueError, match="use: 'none' must be all or some"):
        Countdown(use="none")  # type: ignore[arg-type]
    # 6 / (1 - 3 / 4) is 24, and 1 / 3 is not .33333.
    assert scored("<answer>6 / (1 - 3 / 4)</answer>", {"target": 24, "numbers": [1, 3, 4, 6]}) == 1.0
    truth = {"target": 100000, "numbers": [300000, 3]}
    assert scored("<answer>300000 / 3</answer>", truth) == 1.0
    nearly = {"target": 1, "numbers": [10**6, 10**6 + 1]}
    assert scored(f"<answer>{10**6} / {10**6 + 1}</answer>", nearly) == 0.0, "TinyZero takes .999999 for 1"


@pytest.mark.parametrize("truth", [TASK, json.dumps(TASK), {"target": 16.0, "nums": [3.0, 5, 2]}, None])
def test_the_task_is_a_mapping_its_text_or_columns_of_the_row(truth: Any) -> None:
    assert scored("<answer>(3 + 5) * 2</answer>", truth) == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ground_truth": "72"}, "no whole number as `target`"),
        ({"ground_truth": {"target": "x", "numbers": [1]}}, "no whole number as `target`"),
        ({"ground_truth": {"target": 3, "numbers": "1 2"}}, "`numbers` must be a list of whole numbers"),
        ({"ground_truth": {"target": 3, "numbers": [1, 2.5]}}, "`numbers` must be a list of whole numbers"),
        ({"target": float("nan"), "nums": [1]}, "the row has no whole number as `target`"),
        ({"target": 3, "nums": []}, "`nums` must be a list"),
        ({"target": 3}, "`numbers` must be a list"),
    ],
)
def test_a_row_without_a_task_is_refused_before_the_run(row: dict[str, Any], message: str) -> None:
    assert message in str(problem_of(row))
    assert problem_of({"ground_truth": TASK}) is problem_of({"target": 16, "nums": [3, 5, 2]}) is None
