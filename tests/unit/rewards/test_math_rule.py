"""math_rule on right, wrong and hostile answers. Importing math-verify takes seconds, so the reward is built once."""

import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from roll.errors import ConfigError
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.math_rule import MathRule
from roll.rewards.table import row_checks
from roll.utils.answers.final_answer import answer_in_prose
from roll.utils.answers.math_equal import MathEqual, is_huge, reference
from tests.helpers.cases import cases


@pytest.fixture(scope="module")
def math_rule() -> MathRule:
    return MathRule()


@cases("truth, right, wrong")
def test_answers_as_models_give_them_to_data_sets(
    math_rule: MathRule, truth: str, right: list[str], wrong: list[str]
) -> None:
    assert misjudged(math_rule, truth, right, 1) == []
    assert misjudged(math_rule, truth, wrong, 0) == []


@cases("truth, responses")
def test_what_a_policy_must_not_be_paid_for(math_rule: MathRule, truth: str, responses: list[str]) -> None:
    assert misjudged(math_rule, truth, responses, 0) == []


def misjudged(math_rule: MathRule, truth: str, responses: list[str], score: float) -> list[str]:
    return [text for text in responses if math_rule(RewardInput("", text, truth)).score != score]


@cases("text, answer")
def test_outside_a_box_the_last_value_counts(text: str, answer: str | None) -> None:
    assert answer_in_prose(text) == answer


def test_thinking_that_the_prompt_opened_and_nobody_closed_scores_0(math_rule: MathRule) -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert math_rule(RewardInput(prompt, "maybe 42", "42", finish_reason="length")).score == 0
    assert math_rule(RewardInput(prompt, "maybe 41</think>42", "42")).score == 1


@pytest.mark.parametrize(
    "response",
    [
        r"}}}{{{ \boxed{\\{{}",
        r"\boxed{10^{10^{10}}}",
        r"\boxed{2^{999999999999}}",
        r"\boxed{9999999!}",
        r"\boxed{((((9^9)^9)^9)^9)}",
        r"\boxed{" * 5000,
        r"\boxed{" + "1+" * 5000 + "1}",
        "no idea",
    ],
)
def test_garbage_and_huge_numbers_score_0_quickly(math_rule: MathRule, response: str) -> None:
    started = time.thread_time()
    assert math_rule(RewardInput("", response, "3")).score == 0
    assert time.thread_time() - started < 20


def test_metrics_say_how_the_answer_was_given_and_settings_what_counts(math_rule: MathRule) -> None:
    assert math_rule(RewardInput("", "it is 4", "4")).metrics == {"answer_found": 1.0, "boxed": 0.0}
    assert math_rule(RewardInput("", r"\boxed{4}", "4")).extra == {"answer": "4"}
    assert math_rule(RewardInput("", "some of them", "4")).metrics == {"answer_found": 0.0, "boxed": 0.0}
    reward = MathRule(require_boxed=True)
    assert reward(RewardInput("", "4", "4")).score == 0
    assert reward(RewardInput("", r"\boxed{4}", "4")).score == 1
    costs = MathRule(wrong=-1.0)
    assert [costs(RewardInput("", answer, "42")).score for answer in ("so 42", "so 41", "")] == [1.0, -1.0, -1.0]


def test_truths_are_found_in_solutions_and_never_computed_without_end(math_rule: MathRule) -> None:
    for truth in (None, " "):
        with pytest.raises(ValueError, match="ground_truth is empty"):
            math_rule(RewardInput("", "4", truth))
    assert [reference(t) for t in ("72", r"so \boxed{72}", "6 * 12 = 72\n#### 72", "$72$")] == ["72"] * 4
    assert all(map(is_huge, ["10^{10^{10}}", "9**9**9**9", "2^{99999}", "99999!"]))
    assert not any(map(is_huge, ["2^{10}", "2^{2^3}", "10!", "x^2", "1" * 500, "0^{0^0}"]))
    assert math_rule(RewardInput("", r"\boxed{7}", 10**5000)).score == 0


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        (5, "5"),
        (5.0, "5"),
        (1e-07, "0.0000001"),
        (2.5e-05, r"2.5 \times 10^{-5}"),
        (1e22, "10^{22}"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, r"\frac{1}{3}"),
        (2 / 3, "0.66666667"),
        (np.float32(0.5), "1/2"),
        (np.int64(-3), "-3"),
        (np.array([2.0, 3.0]), "3"),
        (Decimal("1E-7"), "0.0000001"),
        (Decimal("12.50"), "12.5"),
        (Fraction(1, 3), "1/3"),
        (["1/2", 0.25], "0.25"),
        ('["1/2", "0.25"]', "0.5"),
        (("(1,2)",), "(1,2)"),
    ],
)
def test_a_ground_truth_is_read_as_files_hold_it(math_rule: MathRule, truth: Any, answer: str) -> None:
    assert math_rule(RewardInput("", rf"\boxed{{{answer}}}", truth)).score == 1
    assert math_rule(RewardInput("", r"\boxed{77}", truth)).score == 0


def read(truth: Any, column: str = "answer") -> None:
    domain = Domain("math", ("math",), checks=row_checks(RewardConfig.model_validate({"reward": "math_rule"})))
    args = DataArgs.model_validate({"file_name": "f.jsonl", "ground_truth": "answer"})
    RowReader(args, "actor_train.data_args", [domain]).read(Row("f.jsonl", 3, {"prompt": "?", column: truth}))


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ({"solved": ["5"]}, "is a mapping (solved). Name the entry that is the answer"),
        ([{"solved": "5"}], "is a list with a mapping (solved)"),
        ('{"solved": "5"}', "is the text of a mapping (solved). Name the entry that is the answer"),
        ({"answer": None}, "is a mapping (answer)"),
        ([], "is an empty list"),
        ([["5"]], "is a list with a list"),
        (["5", None], "is a list with an empty entry"),
        (["5", " "], "is a list with an empty entry"),
        (True, "is true. Write the text that an answer holds"),
        (np.bool_(False), "is false"),
        (b"5", "is a bytes"),
        (Decimal("NaN"), "is NaN"),
        ([float("inf")], "is a list with inf"),
    ],
)
def test_a_row_whose_ground_truth_is_no_text_or_number_is_refused(truth: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(truth)
    text = str(refused.value)
    assert text.startswith(f"f.jsonl:3: its ground truth {said}")
    assert text.endswith("(rewards.math, ground_truth is column 'answer')")


@pytest.mark.parametrize("truth", ["5", 5, 0, 1e-07, ["5", 6], '["a"]', np.int64(3), Decimal("2.5")])
def test_a_row_with_a_text_a_number_or_a_list_of_these_is_read(truth: Any) -> None:
    read(truth)


@pytest.mark.parametrize(("tolerance", "is_right"), [(None, False), (0.01, True), (0.001, False)])
def test_the_tolerance_is_relative_and_for_decimals_alone(tolerance: float | None, is_right: bool) -> None:
    equal = MathEqual(tolerance)
    assert equal("1.602e-19", "1.61e-19") == equal(r"\pi", "3.15") == equal("100.5", "101") == is_right
    assert not equal("100", "101") and not equal("1/3", "100/301")


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 2])
def test_a_tolerance_that_is_none_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance"):
        MathRule(tolerance=tolerance)


def test_a_slow_comparison_is_wrong_and_no_failure() -> None:
    equal, started = MathEqual(limit_s=0.5), time.thread_time()
    assert not equal("5", r"\sum_{i=1}^{10^9} \sin(i)")
    assert time.thread_time() - started < 5


def test_a_comparison_that_waits_for_the_processor_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a right answer was 0 after five seconds."""
    assert MathEqual()("x+1", "1+x")  # the first comparison of a process computes a third of the limit below
    equal = MathEqual(limit_s=0.3)
    compare = equal._equal

    def waits(truth: str, answer: str) -> bool:
        time.sleep(0.8)
        return compare(truth, answer)

    monkeypatch.setattr(equal, "_equal", waits)
    assert equal("x+1", "1+x")
