"""One meaning of a ground truth, whatever reads it: rewards, judges, tool episodes, environments."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from roll.envs.questions import QaQuestions
from roll.errors import ConfigError
from roll.rewards.base import RewardInput
from roll.rewards.choice import CrossThinkQA, GeneralRule, MultipleChoice
from roll.rewards.config import RewardConfig
from roll.rewards.judge.judge import JudgePrompt
from roll.rewards.table import build_reward, row_checks
from roll.utils.truths import accepted_answers, options_in
from tests.helpers.cases import cases

COLOURS = ["red", "green", "blue", "grey"]
ARC = {"text": COLOURS, "label": ["1", "2", "3", "4"]}


@pytest.mark.parametrize(
    ("truth", "accepted"),
    [
        ("Paris", ["Paris"]),
        (5, ["5"]),
        (5.0, ["5", "5.0"]),
        (2.5, ["2.5"]),
        (1e16, ["10000000000000000", "1e+16"]),
        (1e300, ["1e+300"]),
        (Decimal("5.00"), ["5", "5.00"]),
        (Decimal("2.50"), ["2.50"]),
        (["Paris", "paris"], ["Paris", "paris"]),
        ('["Paris", "paris"]', ["Paris", "paris", '["Paris", "paris"]']),  # the list may be the answer
        ("['Paris', 'paris']", ["Paris", "paris", "['Paris', 'paris']"]),
        ({"number": "2", "spans": [], "date": {"day": ""}}, ["2"]),
        ({"number": "", "spans": np.array(["Denver"], object)}, ["Denver"]),
        ([{"text": []}, {"text": ["Denver"]}], ["Denver"]),
        ("[1, 2]", ["[1, 2]"]),
        ({"ground_truth": "3", "style": "rule"}, ["3"]),
        ({"target": ["a", "b"]}, ["a", "b"]),
        ('{"ground_truth": "3"}', ["3"]),
        ({"value": "UK", "aliases": ["GB", "UK"]}, ["UK", "GB"]),
        ({"value": "The UK", "normalized_aliases": ["uk", "gb"]}, ["The UK", "uk", "gb"]),
        ({"text": ["Denver"], "answer_start": [3]}, ["Denver"]),
        ([{"text": "Denver", "answer_start": 3}], ["Denver"]),
        ('{"name": "Bob"}', ['{"name": "Bob"}']),  # the text of a call may be what is asked for
    ],
)
def test_a_ground_truth_accepts_what_its_form_says(truth: Any, accepted: list[str]) -> None:
    assert list(accepted_answers(truth)) == accepted


@cases("truth, row, accepted")
def test_a_number_beside_options_is_an_index(truth: Any, row: dict[str, Any], accepted: list[str]) -> None:
    assert [*accepted_answers(truth, options_in(row))] == accepted


@pytest.mark.parametrize("reward", [MultipleChoice(), GeneralRule(), CrossThinkQA("hard")])
@pytest.mark.parametrize(
    ("truth", "row", "right", "wrong"),
    [
        (2, {"choices": COLOURS}, ["C", "blue"], ["2", "B", "D", "TEXT"]),
        ("3", {"endings": COLOURS}, ["D", "grey"], ["3", "C"]),
        ("3", {"choices": ARC}, ["3", "C", "blue"], ["2", "D", "TEXT", "L"]),
        ("C", {"choices": {"text": COLOURS, "label": list("ABCD")}}, ["C", "blue"], ["T", "2", "3"]),
        ("B", {"options": ["A)21", "B)21.5"]}, ["B", "21.5"], ["21", "A"]),
        ("blue", {"options": [{"key": "A", "value": "red"}, {"key": "B", "value": "blue"}]}, ["B", "blue"], ["A"]),
        (np.int64(2), {"choices": np.array(COLOURS, object)}, ["C", "blue"], ["2", "B"]),
        ([0, 0, 1, 0], {"choices": COLOURS}, ["C", "blue"], ["A", "B", "D", "0", "1"]),
        (np.array([0, 1, 0, 0]), {"choices": COLOURS}, ["B", "green"], ["A", "C"]),
    ],
)
def test_choices_pay_the_letter_and_the_text_and_no_bare_index(
    reward: GeneralRule, truth: Any, row: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    scores = [[reward(RewardInput("", f"The answer is {text}.", truth, payload=row)).score for text in texts]
              for texts in (right, wrong)]  # fmt: skip
    assert scores == [[1.0] * len(right), [0.0] * len(wrong)]


@pytest.mark.parametrize("truth", [["Paris", "paris"], '["Paris", "Lutetia"]', {"target": ["Paris"]}])
def test_rewards_judges_and_questions_take_the_same_answers(truth: Any, tmp_path: Path) -> None:
    sample = RewardInput("", "Paris", truth)
    for name in ("exact_match", "general_rule", "math_rule"):
        reward: Any = build_reward(RewardConfig.model_validate({"reward": name}))
        answer = r"\boxed{Paris}" if name == "math_rule" else "Paris"
        assert reward(RewardInput("", answer, truth)).score == 1, name
    assert JudgePrompt("{response}: {reference}").render(sample) == f"Paris: {' or '.join(sample.accepted)}"
    (tmp_path / "qa.jsonl").write_text(json.dumps({"question": "?", "answer": truth}))
    env = QaQuestions(str(tmp_path / "qa.jsonl"), reward="f1")
    env.reset(0)
    assert env.step("Paris").reward == 1


@cases("reward, row, said")
def test_a_row_without_an_answer_that_can_be_right_is_refused(reward: str, row: dict[str, Any], said: str) -> None:
    domain = Domain("own", ("own",), checks=row_checks(RewardConfig.model_validate({"reward": reward})))
    reader = RowReader(
        DataArgs.model_validate({"file_name": "f.jsonl", "ground_truth": "answer"}), "data_args", [domain]
    )
    if not said:
        assert reader.read(Row("f.jsonl", 1, {"prompt": "?", **row})).text == "?"
        return
    with pytest.raises(ConfigError) as refused:
        reader.read(Row("f.jsonl", 1, {"prompt": "?", **row}))
    assert f"its ground truth {said}" in str(refused.value)


def test_a_named_column_of_options_is_checked_and_read() -> None:
    config = RewardConfig.model_validate(
        {"reward": "multiple_choice", "reward_args": {"options_column": "extra.picks"}}
    )
    row = {"ground_truth": 2, "extra": json.dumps({"picks": COLOURS})}
    assert [check(row) for check in row_checks(config)] == [None]
    reward: Any = build_reward(config)
    assert [reward(RewardInput("", text, 2, payload=row)).score for text in ("C", "2")] == [1, 0]


def test_a_name_with_dots_goes_through_json_text() -> None:
    row = Row("f.jsonl", 1, {"info": '{"ground_truth": {"target": ["a"]}}', "prompt": "?"})
    assert (row.value("info.ground_truth.target"), row.value("info.other"), row.value("prompt.x")) == (
        ["a"],
        None,
        None,
    )
