"""What a judge is asked, and which settings of a judge cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.judge.judge import PROMPTS, JudgePrompt, prompt_named
from roll.utils.secrets import redact
from tests.helpers.cases import cases
from tests.helpers.configs import checked, config, problems

ANSWER = RewardInput("<|user|>6 * 7?", "it is {42}", 42, question="6 * 7?", payload={"rubric": "be brief", "n": 3})


def test_a_judge_is_asked_as_its_settings_say() -> None:
    prompt = JudgePrompt("{question} / {response} / {reference} / {rubric} / {{x}} {lowest} to {highest}", 0, 10)
    assert prompt.render(ANSWER) == "6 * 7? / it is {42} / 42 / be brief / {x} 0 to 10"
    assert prompt.columns == ("ground_truth", "rubric")
    assert problems(judge()) == []
    assert config(judge()).rewards["math"].generating_args.temperature == 0
    asked = config(judge(generating_args={"temperature": 0.7})).rewards["math"]
    assert asked.generating_args.temperature == 0.7
    worker = "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker"
    assert config(judge(reward=..., worker_cls=worker)).rewards["math"].is_judge
    found = checked(judge(judge_prompt="Qwen2.5-7B-Instruct-RLVR-prompt", reward=..., worker_cls=worker))
    assert found.problems == ()
    assert problems(engines(reward=..., worker_cls=worker)) == []
    (said,) = problems({"actor_infer.worker_cls": worker})
    assert said.startswith(f"actor_infer.worker_cls: {worker} is not supported")
    settings = RewardConfig(reward="llm_judge", judge_api_key="key-123456")
    assert redact(settings.model_dump())["judge_api_key"] == "***"


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


@cases("given, reason")
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


@cases("changes, said")
def test_settings_of_a_judge_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    (found,) = problems(judge(**changes))
    assert found.startswith("rewards.math.") and said in found


ENGINES = {
    "judge_model_type": "inference",
    "model_args": {"model_name_or_path": "org/judge"},
    "strategy_args": {"strategy_name": "vllm", "strategy_config": {"tensor_parallel_size": 2}},
    "device_mapping": [8, 9],
}
SHARED = {"reward_model": {key: value for key, value in ENGINES.items() if key != "judge_model_type"}}


def engines(**changes: Any) -> dict[str, Any]:
    return judge(**({"judge_model_name": ..., "judge_api_url": ...} | ENGINES | changes))


def test_judges_are_roles_that_domains_may_share() -> None:
    made = config(engines())
    assert problems(engines()) == [] and checked(engines()).warnings == ()
    assert made.judge_of == {"math": "rewards.math"} and "rewards.math" not in made.cpu_roles
    worker = made.model_roles["rewards.math"]
    assert (made.num_nodes, worker.num_gpus_per_worker, worker.num_workers) == (2, 2, 1)
    assert (made.rewards["math"].timeout_s, made.rewards["math"].generating_args.temperature) == (600.0, 0.0)
    cluster = {"reward": "llm_judge", "judge_model_type": "cluster", "judge_prompt": "correctness"}
    changes = {"rewards": {"math": cluster, "code": cluster, "sort": {"reward": "math_rule"}}, **SHARED}
    made = config(changes)
    assert problems(changes) == []
    assert made.judge_of == {"math": "reward_model", "code": "reward_model"}
    assert list(made.model_roles) == ["actor_train", "actor_infer", "reward_model"]
    assert list(made.cpu_roles) == ["rewards.sort"]
    sharing = asked_after_the_rollout({})
    assert problems(sharing) == [] and config(sharing).after_rollout_domains == {"math"}
    beside = asked_after_the_rollout({"is_use_additional_prompts": True, "rewards.math.device_mapping": [3]})
    assert problems(beside) == [] and config(beside).after_rollout_domains == frozenset()
    assert "reward_model" not in config(SHARED).model_roles
    assert rlvr_warnings(config(SHARED)) == [
        "reward_model is not started: no domain of rewards has judge_model_type: cluster."
    ]
    (said,) = rlvr_warnings(config({"rewards.math.judge_model_name": "m", "rewards.math.judge_prompt": "quality"}))
    assert said == "rewards.math: judge_model_name, judge_prompt do nothing here: llm_judge is not its reward."


def asked_after_the_rollout(changes: dict[str, Any]) -> dict[str, Any]:
    """A judge that shares a device with actor_infer, whose groups a filter looks at."""
    filters = {"type": "std_filter", "filter_args": {"std_threshold": 0.1}}
    return {
        **engines(device_mapping=[2], strategy_args={"strategy_name": "vllm"}, query_filter_config=filters),
        **changes,
    }


@cases("changes, said")
def test_engines_of_a_judge_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    assert any(said in found for found in problems(changes)), problems(changes)
