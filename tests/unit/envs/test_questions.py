"""roll_math, roll_qa and the search behind them: questions by seed, verdicts, BM25 by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from roll.envs.questions import MathQuestions, QaQuestions, Questions, exact_match, f1, load_rows
from roll.envs.tools.search import Bm25, load_corpus
from roll.errors import EnvError
from tests.helpers.cases import cases

DATA = Path(__file__).parents[3] / "examples" / "questions"
MATH, QA, CORPUS = (str(DATA / f"{name}.jsonl") for name in ("math", "qa", "corpus"))


def test_bm25_gives_the_scores_of_its_formula() -> None:
    """Three texts of 2, 4 and 3 words; "red" is in two of them, "sky" in one."""
    index = Bm25(["Red sky", "red red, green house", "a blue door"])
    mean, k, b = 3.0, 1.2, 0.75
    idf_red, idf_sky = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    short, long = k * (1 - b + b * 2 / mean), k * (1 - b + b * 4 / mean)
    first = (idf_red + idf_sky) * (k + 1) / (1 + short)
    second = idf_red * 2 * (k + 1) / (2 + long)
    assert index.search("red SKY", 5) == [(0, pytest.approx(first)), (1, pytest.approx(second))]
    assert index.search("red sky", 1) == [(0, pytest.approx(first))]
    assert index.search("purple", 5) == []
    assert [place for place, _ in Bm25(["a b", "a b"]).search("a", 2)] == [0, 1]


def test_questions_come_by_seed_or_in_turn_with_another_try() -> None:
    found = load_corpus(CORPUS).search("which river flows through cairo", 1)
    assert [(one.title, one.text) for one in found] == [("Nile", "The Nile is a river that flows through Cairo.")]
    assert load_corpus(CORPUS) is load_corpus(CORPUS)
    drawn = [QaQuestions(QA).reset(seed) for seed in range(40)]
    assert drawn == [QaQuestions(QA).reset(seed) for seed in range(40)]
    assert len(set(drawn)) == 8
    assert [QaQuestions(QA, seed=1).reset(seed) for seed in range(40)] != drawn
    in_turn = [QaQuestions(QA, mode="val").reset((1 << 30) + i) for i in range(8)]
    assert sorted(in_turn) == sorted({str(row["question"]) for row in load_rows(QA)})
    env = MathQuestions(MATH, mode="val", tries=3, answer_format="text")
    env.reset(2)
    first, second, third = env.step("71"), env.step(""), env.step("72")
    assert (first.observation, first.terminated, first.reward) == ("That is not right. Tries left: 2.", False, 0.0)
    assert (second.terminated, second.metrics["action_is_valid"]) == (False, 0.0)
    assert (third.reward, third.terminated) == (1.0, True)


@cases("row, key, found")
def test_a_question_is_a_text_or_one_message(row: dict[str, Any], key: str, found: str, tmp_path: Path) -> None:
    """Never what Python writes of a list."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")

    def question() -> str:
        return Questions(str(tmp_path / "rows.jsonl"), "train", key, "answer", "val", 0, "me").draw(0)[0]

    if found.endswith("31?"):
        assert question() == found
    else:
        with pytest.raises(EnvError, match=found):
            question()


@cases("answer, right, found")
def test_the_boxed_answer_is_judged_as_mathematics(answer: str, right: float, found: float) -> None:
    env = MathQuestions(MATH, mode="val")
    assert env.reset(1) == "What is one half of 3?"
    step = env.step(answer)
    assert (step.reward, step.metrics["success"], step.metrics["action_is_valid"]) == (right, right, found)
    assert step.terminated and not step.truncated


def test_any_of_a_list_is_right_and_a_tolerance_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"problem": "?", "answer": ["5", 0.25]}))
    env = MathQuestions(str(path), tolerance=0.1)
    for answer, right in ((r"\boxed{1/4}", 1.0), (r"\boxed{0.26}", 1.0), (r"\boxed{6}", 0.0), (r"\boxed{5}", 1.0)):
        env.reset(0)
        assert env.step(answer).reward == right


@cases("answer, truths, exact, shared")
def test_texts_are_compared_as_squad_does(answer: str, truths: list[str], exact: float, shared: float) -> None:
    assert (exact_match(answer, truths), f1(answer, truths)) == (exact, pytest.approx(shared))


def test_a_question_ends_with_its_answer_and_earns_what_reward_says() -> None:
    def played(answer: str, **keys: Any) -> tuple[float, bool, float]:
        env = QaQuestions(QA, mode="val", **keys)
        assert env.reset(5) == "Who painted the Mona Lisa?"
        step = env.step(answer)
        return step.reward, step.terminated, step.metrics["success"]

    assert played("leonardo da vinci") == (1.0, True, 1.0)
    assert played("Leonardo") == (0.0, True, 0.0)
    assert played("Leonardo", reward="f1") == (pytest.approx(0.5), True, 0.0)
    assert played(r"I think \boxed{Leonardo da Vinci}", extract_boxed=True) == (1.0, True, 1.0)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"dataset_name": "nowhere.jsonl"}, "nowhere.jsonl does not exist: name a .json, .jsonl, .csv, .parquet file"),
        ({"dataset_name": QA, "answer_key": "solution"}, "answer_key: row 0 of .*qa.jsonl has no solution; it has que"),
        ({"dataset_name": QA, "mode": "test"}, "mode is 'test', not train or val"),
        ({"dataset_name": QA, "reward": "em"}, "reward: em must be exact_match or f1"),
    ],
)
def test_what_is_wrong_with_the_data_is_said_when_the_environment_is_built(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(EnvError, match=text):
        QaQuestions(**keys)
