"""math_rule on right, wrong and hostile answers. Importing math-verify takes seconds, so the reward is built once."""

import time

import pytest

from roll.pipeline.rlvr.rewards.base import RewardInput
from roll.pipeline.rlvr.rewards.math_rule import MathRule
from roll.utils.math_equal import is_huge, reference


@pytest.fixture(scope="module")
def math_rule() -> MathRule:
    return MathRule()


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5"),
        (r"so \boxed{\dfrac{1}{2}}", r"\frac12"),
        (r"\boxed{\frac{\sqrt{3}}{2}}", r"$\frac{\sqrt3}{2}$"),
        (r"<think>\boxed{3}</think> it is \boxed{4}", "4"),
        ("<think>first 3</think>The answer is 4.", "4"),
        ("the answer is 1,234", "1234"),
        ("She pays $72.", "48 + 24 = 72\n#### 72"),
        ("72.0", r"Hence \boxed{72}"),
        (r"\boxed{50\%}", "0.5"),
        ("50%", "50"),
        (r"\boxed{50}", r"50\%"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{(1,2)}", "(1,2)"),
        (r"\boxed{\{1,2\}}", r"\{2,1\}"),
        (r"\boxed{12 \text{ cm}}", "12"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{2^{10}}", "1024"),
        (r"\boxed{-\infty}", r"-\infty"),
        ("2 / 4", "0.5"),
        ("a" * 100_000 + " 7", "7"),
        (r"\boxed{10^{10^{10}}}", r"10^{10^{10}}"),
    ],
)
def test_right_answers_score_1(math_rule: MathRule, response: str, truth: str) -> None:
    assert math_rule(RewardInput("", response, truth)).score == 1


def test_thinking_that_the_prompt_opened_and_nobody_closed_scores_0(math_rule: MathRule) -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert math_rule(RewardInput(prompt, "maybe 42", "42", finish_reason="length")).score == 0
    assert math_rule(RewardInput(prompt, "maybe 41</think>42", "42")).score == 1


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        (r"<think>\boxed{4}</think> it is \boxed{3}", "4"),
        (r"<think>\boxed{4}</think>", "4"),
        (r"<think>cut off at \boxed{4}", "4"),
        ("<think>let me try 41, or maybe 42", "42"),
        (r"<think>\boxed{42} no wait, that is wrong", "42"),
        (r"\boxed{42", "42"),
        (r"\boxed{42} no, \boxed{43", "42"),
        (r"\boxed{4} or \boxed{3}", "4"),
        (r"\boxed{-4}", "4"),
        (r"\boxed{0.33}", r"\frac13"),
        (r"\boxed{(2,1)}", "(1,2)"),
        (r"\boxed{}", "4"),
        (r"\boxed{\frac{", "4"),
        (r"}}}{{{ \boxed{\\{{}", "4"),
        (r"\boxed{hello world}", "4"),
        (r"\boxed{ten}", "10"),
        (r"\boxed{10^{10^{10}}}", "3"),
        (r"\boxed{2^{999999999999}}", "3"),
        (r"\boxed{9999999!}", "3"),
        (r"\boxed{((((9^9)^9)^9)^9)}", "3"),
        (r"\boxed{" * 5000, "3"),
        (r"\boxed{" + "1+" * 5000 + "1}", "3"),
        ("no idea", "4"),
        ("", "4"),
    ],
)
def test_wrong_answers_and_garbage_score_0_quickly(math_rule: MathRule, response: str, truth: str) -> None:
    started = time.monotonic()
    assert math_rule(RewardInput("", response, truth)).score == 0
    assert time.monotonic() - started < 20


def test_metrics_say_how_the_answer_was_given(math_rule: MathRule) -> None:
    assert math_rule(RewardInput("", "it is 4", "4")).metrics == {"answer_found": 1.0, "boxed": 0.0}
    assert math_rule(RewardInput("", r"\boxed{4}", "4")).extra == {"answer": "4"}
    assert math_rule(RewardInput("", "four", "4")).metrics == {"answer_found": 0.0, "boxed": 0.0}


def test_require_boxed_counts_no_other_answer() -> None:
    reward = MathRule(require_boxed=True)
    assert reward(RewardInput("", "4", "4")).score == 0
    assert reward(RewardInput("", r"\boxed{4}", "4")).score == 1


def test_a_row_without_truth_raises_instead_of_scoring_0(math_rule: MathRule) -> None:
    for truth in (None, " "):
        with pytest.raises(ValueError, match="no ground_truth"):
            math_rule(RewardInput("", "4", truth))


def test_reference_finds_the_answer_in_worked_solutions() -> None:
    assert [reference(t) for t in ("72", r"so \boxed{72}", "6 * 12 = 72\n#### 72", "$72$")] == ["72"] * 4


def test_what_python_could_not_finish_computing_is_huge() -> None:
    assert all(map(is_huge, ["10^{10^{10}}", "9**9**9**9", "2^{99999}", "99999!"]))
    assert not any(map(is_huge, ["2^{10}", "2^{2^3}", "10!", "x^2", "1" * 500, "0^{0^0}"]))
