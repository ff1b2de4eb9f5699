"""Answers in boxes and in sentences, and the comparisons that are built on them."""

import re

import pytest

from roll.rewards.base import RewardInput, RewardResult
from roll.rewards.texts import ExactMatch, Regex
from roll.utils.answers.final_answer import answer_in_prose, boxed_answer, final_answer, has_open_box, last_boxed
from tests.helpers.cases import cases


@cases("text, answer")
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 20_000,
        r"\boxed{" * 20_000 + "}" * 20_000,
        "{" * 200_000,
        "7 " * 100_000,
        "1," * 100_000,
        "\\" * 200_000,
        "1$ " * 50_000,
        "x+" * 100_000,
        "x - " * 50_000,
        "$" + r"\implies " * 20_000 + "5$",
        "$5" + "=5 " * 50_000 + "x$",
        r"\(" * 20_000 + "5",
        r"5 \begin{cases}" * 5_000,
        " " * 200_000 + "5",
        "5 (" * 50_000,
        "$5$, " * 50_000,
        "the key " * 5_000 + "5",
        "5? " * 50_000,
    ],
)
def test_very_long_garbage_is_searched_in_linear_time(text: str) -> None:
    """Milliseconds; in quadratic time it would run into the limit."""
    last_boxed(text)
    boxed_answer(text)
    answer_in_prose(text)


def score(reward: ExactMatch, response: str, truth: object = "1234") -> float:
    return reward(RewardInput("", response, truth)).score


def test_exact_match_and_regex_compare_groups_or_the_whole() -> None:
    reward = ExactMatch(r"<answer>(.*?)</answer>")
    assert score(reward, "<answer>1234</answer>") == 1
    assert score(reward, "<answer>4321</answer><answer> 1234\n</answer>") == 1
    assert score(reward, "<answer>1234</answer><answer>4321</answer>") == 0
    assert score(reward, "1234") == 0
    assert score(reward, "<answer>1234</answer>", 1234) == 1
    assert score(ExactMatch(), " 1234 ") == 1
    assert score(ExactMatch(strip=False), " 1234 ") == 0
    assert score(ExactMatch(), "Ja", "jA") == 0
    assert score(ExactMatch(ignore_case=True), "Ja", "jA") == 1
    assert score(ExactMatch(r"\d{4}"), "0000 then 1234!") == 1
    result = ExactMatch("=(.)")(RewardInput("", "no", "1"))
    assert result == RewardResult(0.0, {"answer_found": 0.0}, {"answer": None})
    with pytest.raises(ValueError, match="has 2 groups, it may have one"):
        ExactMatch("(a)(b)")
    with pytest.raises(ValueError, match="ground_truth is empty"):
        ExactMatch()(RewardInput("", "1"))
    reward = Regex(r"<think>.*</think>\d+", score=0.5, otherwise=-1)
    assert reward(RewardInput("", "<think>\n</think>12")) == 0.5
    assert reward(RewardInput("", "<think></think>12.")) == -1
    with pytest.raises(re.error):
        Regex("(")
    assert [has_open_box(text) for text in (r"\boxed{4", r"\boxed{1} \boxed{2", r"\boxed{4} {", "4")] == [1, 1, 0, 0]


@cases("text, expected")
def test_the_final_answer_and_how_it_is_given(text: str, expected: list[str | None]) -> None:
    assert [*final_answer(text)] == expected


@cases("text, answer")
def test_boxes_that_are_given_beside_each_other_are_one_answer(text: str, answer: str | None) -> None:
    """Else who hedges is paid, and who boxes each of two roots is not."""
    assert boxed_answer(text) == answer
