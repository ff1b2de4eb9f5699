"""Which score is in what a judge says, and which replies hold none."""

from __future__ import annotations

import pytest

from roll.rewards.config import VerdictForm
from roll.rewards.judge import judge as verdict
from roll.rewards.judge.judge import NoVerdict, VerdictReader
from tests.helpers.cases import cases

WORDS = {
    "yes": 1,
    "Yes, the answer has no fault.": 1,
    "No: it says yes where it should not.": 0,
    "It is right.\nyes": 1,
    "The reference says no, the answer too.\nVerdict: yes": 1,
    "Verdict: yes\nOn second thought the sign is wrong.\n**Verdict:** no": 0,
    "final answer is: no, although yes comes near": 0,
    "The verdict is \\boxed{yes}": 1,
    "<think>no, no, no</think>\nyes": 1,
    "I would say yes": 1,
}
NO_WORDS = {
    "": "an empty reply",
    "<think>yes": "only thinking",
    "<think>verdict: yes</think>": "only thinking",
    "yesterday nobody knew": "it says neither yes nor no",
    "Some say yes, some say no, who knows": "it says both yes and no",
    "Yes, certainly.\nNo": "it says both yes and no",
}


@pytest.mark.parametrize(("reply", "score"), WORDS.items())
def test_words_give_the_score_they_are_worth(reply: str, score: float) -> None:
    assert VerdictReader("yes_no")(reply) == score


@pytest.mark.parametrize(("reply", "reason"), NO_WORDS.items())
def test_words_that_are_missing_or_disagree_are_no_verdict(reply: str, reason: str) -> None:
    with pytest.raises(NoVerdict, match=f"^{reason}"):
        VerdictReader("yes_no")(reply)


def test_words_boxes_and_patterns_have_their_worth() -> None:
    read = VerdictReader("yes_no", scores={"Right": 1.0, "partly right": 0.5, "wrong": -1.0})
    assert [read(reply) for reply in ("Verdict: right", "Verdict: Partly Right", "WRONG!")] == [1.0, 0.5, -1.0]
    with pytest.raises(NoVerdict, match="neither right nor partly right nor wrong"):
        read("yes")
    read = VerdictReader("boxed", score_range=(0, 4))
    assert [read(rf"\boxed{{{held}}}") for held in ("Yes", r"\text{no}", "3", " 1 ")] == [1.0, 0.0, 0.75, 0.25]
    for reply in (r"\boxed{perhaps}", r"\boxed{yes", "yes", r"\boxed{5}"):
        with pytest.raises(NoVerdict):
            read(reply)
    read = VerdictReader("pattern", r"<v>(.*?)</v>", {"A": 1.0, "B": 0.25}, (0, 10))
    assert [read(reply) for reply in ("<v>B</v> or rather <v>A</v>", "<v> b </v>", "<v>5</v>")] == [1.0, 0.25, 0.5]
    assert VerdictReader("pattern", r"\d", None, (0, 10))("1 2 3") == pytest.approx(0.3)
    for reply in ("A", "<v>C</v>", "<v></v>", "<v>11</v>"):
        with pytest.raises(NoVerdict):
            read(reply)


SCORES = {
    "Score: 7": 0.7,
    "Rating: **2.5**": 0.25,
    "Score: 3\nNo, better: Score: 8/10": 0.8,
    "**9/10**": 0.9,
    "There are 3 faults in 12 lines.\nScore: 0": 0.0,
    "Score: 6.": 0.6,
}
NO_SCORES = {
    "Score: 11": "11 is not from 0 to 10",
    "Score: -1": "-1 is not from 0 to 10",
    "Score: 4/5": "a score of 4 out of 5, not out of 10",
    "it earns between 3 and 4": "it has no score",
    f"Score: {'9' * 400}": "inf is not from 0 to 10",
}


@pytest.mark.parametrize(("reply", "score"), SCORES.items())
def test_a_score_becomes_its_place_in_the_range(reply: str, score: float) -> None:
    assert VerdictReader("score", score_range=(0, 10))(reply) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(("reply", "reason"), NO_SCORES.items())
def test_a_score_that_is_missing_or_outside_the_range_is_no_verdict(reply: str, reason: str) -> None:
    with pytest.raises(NoVerdict, match=f"^{reason}"):
        VerdictReader("score", score_range=(0, 10))(reply)


@cases("reply, score")
def test_json_holds_a_number_a_word_or_a_truth(reply: str, score: float) -> None:
    assert VerdictReader("json", score_range=(1, 5))(reply) == score


@pytest.mark.parametrize(
    "reply",
    ['{"score": 4', '{"points": 4}', "{}", '{"score": null}', '{"score": NaN}', '{"score": 1e999}', '{"score": [4]}',
     "{" * 5000, '{"a":' * 20_000, '{"score": "4 of 5"}', f'{{"score": {"9" * 5000}}}'],
)  # fmt: skip
def test_json_that_is_none_or_holds_no_verdict_is_none(reply: str) -> None:
    with pytest.raises(NoVerdict):
        VerdictReader("json", score_range=(1, 5))(reply)


def test_a_pattern_that_never_ends_on_a_reply_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MATCH_LIMIT_S", 0.1)
    with pytest.raises(NoVerdict, match="judge_verdict_pattern takes more than 0.1 s"):
        VerdictReader("pattern", r"(?:a|a|aa)+(?:a|aa)+$")("a" * 200 + "!")


@pytest.mark.parametrize(("pattern", "reason"), [("(", "is not a regular expression"), ("(a)(b)", "has 2 groups")])
def test_a_pattern_that_is_none_is_refused(pattern: str, reason: str) -> None:
    form: VerdictForm = "pattern"
    with pytest.raises(ValueError, match=reason):
        VerdictReader(form, pattern)
