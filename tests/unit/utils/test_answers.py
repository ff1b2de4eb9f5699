"""Finding the final answer, and comparing it: exact_match and regex."""

import re

import pytest

from roll.rewards.base import RewardInput, RewardResult
from roll.rewards.texts import ExactMatch, Regex
from roll.utils.answers.final_answer import boxed_answer, final_answer, has_open_box, last_boxed
from roll.utils.answers.prose import answer_in_prose, own_words


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{1} or rather \boxed{2", None),
        (r"\boxed{1} or {2", "1"),
        (r"\boxed{a \boxed{b}", "b"),
        (r"\fbox{1} \boxed {3}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"$\boxed 5.$", "5"),
        (r"\boxed{}", ""),
        (r"It is \boxed{5}, as was asked for in \boxed{}.", "5"),
        (r"} \boxed{1}} {", "1"),
        (r"\boxed{", None),
        ("boxed{1}", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("it costs $1,234.50 in all.", "1,234.50"),
        ("3 apples and -7 pears", "-7"),
        ("5-3", "3"),
        ("x2 is no number, 1/2 is", "1/2"),
        ("50%", "50%"),
        ("1,2,3", "1, 2, 3"),
        (".5", ".5"),
        ("none", None),
        # one of several, or none of them
        ("between 4 and 5", "between 4 and 5"),
        ("4 to 5", "4 to 5"),
        ("so $4$ or $5$", "4 or 5"),
        ("5 is not the answer", "not 5"),
        ("$5$ isn't right", "not 5"),
        # in a formula
        (r"so it is $\sqrt{5}$.", r"\sqrt{5}"),
        (r"so it is \(x = 5\)", "x = 5"),
        ("it is 3x+5", "3x+5"),
        ("y = 2x + 5", "2x + 5"),
        ("it is e^2", "e^2"),
        (r"$2x = 48 \implies x = 24$", "x = 24"),
        (r"\[ 3x = 24 \quad \Rightarrow \quad x = 8. \]", r"\quad x = 8."),
        ("$2x = 48, x = 24$", "x = 24"),
        ("$x = 4, y = 5$", "x = 4, y = 5"),
        (r"$\frac{m}{n} = \frac{3}{5}, m + n = 8$", "m + n = 8"),
        (r"$|AB| = \sqrt{20} = 2\sqrt{5}$", r"|AB| = \sqrt{20} = 2\sqrt{5}"),
        (r"$f: x \to 12$", "12"),
        (r"$\lim_{x \to 2} 6x = 12$", r"\lim_{x \to 2} 6x = 12"),
        (r"$N = \underline{12}$", "N = {12}"),
        (r"$\color{red}{12}$", "{12}"),
        (r"$\sim 12$", "12"),
        # what a calculation comes to
        ("$(3)(8)=24$", "24"),
        ("$4!=24$", "24"),
        ("4!=24", "24"),
        (r"\[ 16 \text{ eggs} - 8 \text{ eggs} = 8 \text{ eggs} \]", "8"),
        (r"\( 4 \times \$2 = \$8 \)", "8"),
        (r"\[ x = 24 \text{.} \]", "x = 24"),
        (r"$8/\text{hour}$", "8"),
        # not one of several
        ("The price fell from $36 to $18.", "18"),
        ("Rounding 17.6 to 18.", "18"),
        ("48/2 simplifies from 48/2 to 24", "24"),
        ("It ranges from 4 to 5", "4 to 5"),
        # not denied
        ("so 18 is not prime", "18"),
        ("18 is not the only solution", "18"),
        ("24 were not sold.", "24"),
        ("5 is not a correct answer", "not 5"),
        ("5 is wrong", "not 5"),
        # and not in one
        ("He has 18 - a lot!", "18"),
        ("That is 18x faster.", "18"),
        ("18 - i think", "18"),
        ("It costs $5 and then $7 more.", "7"),
        ("a 5-year plan", "5"),
        ("a 3-4-5 triangle", "5"),
        ("x = 5", "5"),
        ("5 x 3 = 15", "15"),
    ],
)
def test_answer_in_prose(text: str, answer: str | None) -> None:
    found = answer_in_prose(text)
    assert found == answer


def test_an_open_box_is_one_that_begins_last_and_is_never_closed() -> None:
    assert [has_open_box(text) for text in (r"\boxed{4", r"\boxed{1} \boxed{2", r"\boxed{4} {", "4")] == [1, 1, 0, 0]


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
    answer_in_prose(own_words(text))


def score(reward: ExactMatch, response: str, truth: object = "1234") -> float:
    return reward(RewardInput("", response, truth)).score


def test_exact_match_compares_the_last_group() -> None:
    reward = ExactMatch(r"<answer>(.*?)</answer>")
    assert score(reward, "<answer>1234</answer>") == 1
    assert score(reward, "<answer>4321</answer><answer> 1234\n</answer>") == 1
    assert score(reward, "<answer>1234</answer><answer>4321</answer>") == 0
    assert score(reward, "1234") == 0
    assert score(reward, "<answer>1234</answer>", 1234) == 1


def test_exact_match_without_pattern_compares_the_whole_response() -> None:
    assert score(ExactMatch(), " 1234 ") == 1
    assert score(ExactMatch(strip=False), " 1234 ") == 0
    assert score(ExactMatch(), "Ja", "jA") == 0
    assert score(ExactMatch(ignore_case=True), "Ja", "jA") == 1
    assert score(ExactMatch(r"\d{4}"), "0000 then 1234!") == 1


def test_exact_match_reports_whether_there_was_an_answer() -> None:
    result = ExactMatch("=(.)")(RewardInput("", "no", "1"))
    assert result == RewardResult(0.0, {"answer_found": 0.0}, {"answer": None})


def test_exact_match_refuses_two_groups_and_a_missing_truth() -> None:
    with pytest.raises(ValueError, match="has 2 groups, it may have one"):
        ExactMatch("(a)(b)")
    with pytest.raises(ValueError, match="ground_truth is empty"):
        ExactMatch()(RewardInput("", "1"))


def test_regex_scores_a_full_match() -> None:
    reward = Regex(r"<think>.*</think>\d+", score=0.5, otherwise=-1)
    assert reward(RewardInput("", "<think>\n</think>12")) == 0.5
    assert reward(RewardInput("", "<think></think>12.")) == -1
    with pytest.raises(re.error):
        Regex("(")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"It is \boxed{B}. <answer>C</answer>", ("B", "boxed")),
        (r"\boxed{B} and \boxed{", (None, "")),
        ("<answer>A</answer> or <answer> C </answer>", ("C", "tag")),
        ("<answer>A <answer>C</answer>", ("C", "tag")),
        ("<answer>A", (None, "")),
        ("So the answer is (C). Done.", ("(C)", "said")),
        ("Answer: 3.5 m\nThat is it", ("3.5 m", "said")),
        ("The answer is A. No, the answer is B", ("B", "said")),
        ("I answer nothing", (None, "")),
        ("the answer is", (None, "")),
        ("", (None, "")),
    ],
)
def test_the_final_answer_and_how_it_is_given(text: str, expected: tuple[str | None, str]) -> None:
    assert final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{4} or \boxed{5}", "4 or 5"),
        (r"$\boxed{1}$ and $\boxed{2}$.", "1, 2"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3"),
        (r"first \boxed{4}, no: \boxed{5}", "5"),
        (r"\boxed{4} \boxed{5}", "4, 5"),
        (r"\boxed{4} or \boxed{5", None),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{4}, no: \boxed 5", "5"),
        (r"\boxed 4 or \boxed{5}", "4 or 5"),
        (r"in \boxed{}, \boxed{5}", "5"),
        ("none", None),
    ],
)
def test_boxes_that_are_given_beside_each_other_are_one_answer(text: str, answer: str | None) -> None:
    """Else who hedges is paid, and who boxes each of two roots is not."""
    assert boxed_answer(text) == answer
