"""What a judge is asked, and which settings of a judge cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.pipeline.rlvr.judge.prompts import PROMPTS, JudgePrompt, prompt_named
from roll.pipeline.rlvr.rewards.base import RewardInput
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.pipeline.rlvr.rlvr_config import RewardConfig
from roll.utils.secrets import redact
from tests.helpers.configs import checked, config, problems

ANSWER = RewardInput("<|user|>6 * 7?", "it is {42}", 42, question="6 * 7?", payload={"rubric": "be brief", "n": 3})


def test_places_are_filled_with_the_answer_and_its_row() -> None:
    prompt = JudgePrompt("{question} / {response} / {reference} / {rubric} / {{x}} {lowest} to {highest}", 0, 10)
    assert prompt.render(ANSWER) == "6 * 7? / it is {42} / 42 / be brief / {x} 0 to 10"
    assert prompt.columns == ("ground_truth", "rubric")


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_by_name_show_the_answer_and_say_where_the_verdict_goes(name: str) -> None:
    text = JudgePrompt(PROMPTS[name].text, 0, 10).render(ANSWER)
    assert "6 * 7?" in text and "it is {42}" in text
    assert {"yes_no": '"Verdict: yes"', "score": '"Score: " and a number from 0 to 10'}[PROMPTS[name].verdict] in text


def test_a_prompt_is_a_name_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "judge.txt"
    file.write_text("Is {response} right?")
    assert prompt_named(str(file)).text == prompt_named("Is {response} right?").text == "Is {response} right?"
    assert prompt_named(None) is PROMPTS["quality"] and prompt_named("correctness") is PROMPTS["correctness"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("correctnes", "'correctnes' is no prompt. Did you mean correctness?"),
        ("prompts/none.txt", "there is no file prompts/none.txt"),
        ("Is it right?", "it has no {response}"),
        ("{response} in \\boxed{}", "{} is no name of a place. Write {{ and }} for braces"),
        ("{response.__class__}", "{response.__class__} is no name of a place"),
        ("{response!r}", "{response} is no name of a place"),
        ("{response:>9}", "{response} is no name of a place"),
        ("{response[0]}", "{response[0]} is no name of a place"),
        ("{response} {", "its braces do not match"),
    ],
)
def test_a_prompt_that_cannot_be_filled_in_is_refused(given: str, reason: str) -> None:
    (said,) = problems(judge(judge_prompt=given))
    assert said.startswith("rewards.math.judge_prompt: ") and reason in said


def judge(**changes: Any) -> dict[str, Any]:
    keys = {
        "reward": "llm_judge",
        "judge_model_type": "api",
        "judge_model_name": "m",
        "judge_api_url": "http://127.0.0.1:1/v1",
    }
    return {f"rewards.math.{key}": value for key, value in (keys | changes).items()}


def test_a_judge_is_greedy_unless_told_otherwise() -> None:
    assert problems(judge()) == []
    assert config(judge()).rewards["math"].generating_args.temperature == 0
    asked = config(judge(generating_args={"temperature": 0.7})).rewards["math"]
    assert asked.generating_args.temperature == 0.7


def test_rolls_worker_class_means_this_reward() -> None:
    worker = "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker"
    assert config(judge(reward=..., worker_cls=worker)).rewards["math"].is_judge
    found = checked(judge(judge_prompt="Qwen2.5-7B-Instruct-RLVR-prompt", reward=..., worker_cls=worker))
    assert found.problems == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"judge_model_type": ...}, "judge_model_type is missing"),
        ({"judge_model_name": ...}, "judge_model_name is missing"),
        ({"judge_api_url": ...}, "judge_api_url is missing"),
        ({"judge_api_url": "127.0.0.1:8000"}, "judge_api_url: '127.0.0.1:8000' is no address"),
        ({"judge_api_url": "http://bob:pass99word@/v1"}, "judge_api_url: 'http://***@/v1' is no address"),
        ({"judge_api_url": "http://host:99999999/v1"}, "is no address"),
        ({"judge_verdict": "pattern"}, "judge_verdict_pattern is missing"),
        ({"judge_verdict": "json", "judge_verdict_pattern": "a"}, "judge_verdict_pattern contradicts"),
        ({"judge_verdict_pattern": "("}, "judge_verdict_pattern: '(' is not a regular expression"),
        ({"judge_score_range": [10, 1]}, "judge_score_range: 10 is not below 1"),
        ({"judge_scores": {" ": 1}}, "judge_scores: ' ' is no word"),
        ({"reward_args": {"temperature": 1}}, "reward_args: llm_judge takes none"),
    ],
)
def test_settings_of_a_judge_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    (found,) = problems(judge(**changes))
    assert found.startswith("rewards.math.") and said in found


def test_keys_of_a_judge_without_one_are_warned_about() -> None:
    (said,) = rlvr_warnings(config({"rewards.math.judge_model_name": "m", "rewards.math.judge_prompt": "quality"}))
    assert said == "rewards.math: judge_model_name, judge_prompt do nothing here: llm_judge is not its reward."


def test_the_key_is_in_no_dump() -> None:
    config = RewardConfig(reward="llm_judge", judge_api_key="key-123456")
    assert redact(config.model_dump())["judge_api_key"] == "***"
