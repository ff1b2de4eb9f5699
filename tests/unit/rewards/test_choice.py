"""multiple_choice, general_rule and crossthinkqa on answers written in many ways."""

from typing import Any

import pytest

from roll.configs.load.known_keys import ROLL_REWARDS
from roll.rewards.base import RewardInput
from roll.rewards.choice import CrossThinkQA, MultipleChoice, choice_problem
from roll.rewards.config import RewardType
from roll.rewards.worker import RewardWorker
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

CITIES = ["Paris", "London", "Rome", "Berlin"]

# Hostile: what may take long.
ENDLESS = ["\\text{" * 5000 + "B" + "}" * 5000, "The answer" + " " * 100_000, "(" * 100_000, "A, " * 30_000]


def judged(text: str, truth: Any, **settings: Any) -> tuple[float, dict[str, float]]:
    result = MultipleChoice(**settings)(RewardInput("", text, truth, payload={"options": CITIES}))
    return result.score, dict(result.metrics)


@cases("truth, right, wrong")
def test_a_choice_is_right_or_wrong(truth: Any, right: list[str], wrong: list[str]) -> None:
    judgements = [(text, *judged(text, truth)) for text in (*right, *wrong)]
    found = [
        text for text, score, metrics in judgements if (score, metrics["success"], metrics["answer_found"]) == (1, 1, 1)
    ]
    assert found == right
    assert [text for text, score, metrics in judgements if (score, metrics["success"]) == (0, 0)] == wrong


@pytest.mark.parametrize("text", ENDLESS)
def test_endless_texts_score_0(text: str) -> None:
    assert judged(text, "B")[0] == 0


@cases("reward_type, scores")
def test_a_reward_type_pays_for_the_box_as_in_roll(reward_type: RewardType, scores: list[float]) -> None:
    texts = (r"\boxed{B}", "The answer is B.", r"\boxed{A}", "The answer is A.")
    assert [judged(text, "B", reward_type=reward_type)[0] for text in texts] == scores
    assert [CrossThinkQA(reward_type)(RewardInput("", text, "B")).score for text in texts] == scores


def test_settings_choose_letters_columns_and_boxes() -> None:
    assert CrossThinkQA()(RewardInput("", "The answer is B.", "B")).score == 0.5
    reward = MultipleChoice(letters="PQ", options_column="texts")
    assert reward(RewardInput("", r"\boxed{Q}", "Q")).score == 1
    assert reward(RewardInput("", r"\boxed{two}", "Q", payload={"texts": ["one", "two"]})).score == 1
    assert reward(RewardInput("", r"\boxed{B}", "Q")).score == 0
    path = "roll.pipeline.rlvr.rewards.multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker"
    reward = RewardWorker("own", config({"rewards.own": {"worker_cls": path}}).rewards["own"])
    outcomes = reward.score([RewardInput("", text, "B") for text in (r"\boxed{B}", "The answer is B.")])
    assert [outcome and outcome.score for outcome in outcomes] == [1, 0]
    assert MultipleChoice()(RewardInput("<think>\n", "B", "B")).score == 0
    assert MultipleChoice()(RewardInput("<think>\n", "A</think>B", "B")).score == 1


@pytest.mark.parametrize(("text", "score"), [(r"\boxed{B}", 1), ("The answer is B.", 0), ("<answer>B</answer>", 0)])
def test_a_box_may_be_demanded(text: str, score: float) -> None:
    assert judged(text, "B", require_boxed=True)[0] == score


@pytest.mark.parametrize(("text", "score"), [("(C) is not true.", 1), ("C is false", 1), ("It is not (C).", 0)])
def test_what_a_question_for_a_false_choice_asks_for_is_no_denial(text: str, score: float) -> None:
    assert MultipleChoice()(RewardInput("", text, "C", question="Which of these is NOT true?")).score == score


@cases("options, text, score")
def test_the_text_of_an_option_is_as_good_as_its_letter(options: Any, text: str, score: float) -> None:
    assert MultipleChoice()(RewardInput("", text, "B", payload={"options": options})).score == score


@pytest.mark.parametrize("truth", [None, "", " ", [], [None]])
def test_a_row_without_a_reference_is_a_failure(truth: Any) -> None:
    with pytest.raises(ValueError, match="is empty|an empty (list|entry)"):
        judged("B", truth)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_type": "kind"}, "reward_type: 'kind' must be one of hard, soft"),
        ({"letters": "AAB"}, "letters: 'AAB'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultipleChoice(**settings)


RULES = {"math_rule", "ifeval", "general_rule", "multiple_choice", "crossthinkqa", "detection"}


@pytest.mark.parametrize("path", [path for path, reward in ROLL_REWARDS.items() if reward in RULES])
def test_every_rule_of_roll_that_has_a_counterpart_loads_whatever_its_reward_type(path: str) -> None:
    changes = {"rewards.own": {"worker_cls": path, "reward_type": "soft", "tag_included": ["x"], "world_size": 8}}
    assert problems(changes) == []
    assert config(changes).rewards["own"].reward == ROLL_REWARDS[path]


def test_rolls_crossthinkqa_has_its_repetition_penalty_unless_parts_are_given() -> None:
    path = "roll.pipeline.rlvr.rewards.crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker"
    text = r"a b c a b c a b c \boxed{B}"
    roll_s = config({"rewards.own": {"worker_cls": path, "reward_type": "soft"}}).rewards["own"]
    (outcome,) = RewardWorker("own", roll_s).score([RewardInput("", text, "B")])
    assert outcome is not None and outcome.score == 1 - 0.5 * (1 - 4 / 8)
    bare = config({"rewards.own": {"worker_cls": path, "reward_manager_config": []}}).rewards["own"]
    (outcome,) = RewardWorker("own", bare).score([RewardInput("", text, "B")])
    assert outcome is not None and outcome.score == 1


def test_options_may_have_a_column_each_counted_or_by_their_labels() -> None:
    row = {"sol1": "a fork", "sol2": "a spoon", "ground_truth": 1}
    by_place, by_label = ["sol1", "sol2"], {"1": "sol1", "2": "sol2"}
    for column, right in ((by_place, "B"), (by_label, "A")):
        assert choice_problem(row) and choice_problem(row, column) is None
        reward = MultipleChoice(options_column=column)
        scores = {text: reward(RewardInput("", text, 1, payload=row)).score for text in ("A", "B", "a fork")}
        assert scores == {"A": float(right == "A"), "B": float(right == "B"), "a fork": float(right == "A")}
