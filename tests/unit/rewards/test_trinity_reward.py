"""Reward functions as Trinity-RFT calls them."""

from typing import Any

import pytest

from roll.pipeline.rlvr.reward_checks import code_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.table import build_reward
from roll.rewards.trinity import TrinityReward
from tests.helpers.cases import cases

HERE = "tests.unit.rewards.test_trinity_reward"
SAMPLE = RewardInput("what is 2 + 2?", "<think>x</think>4", ground_truth="4")


class Parts:
    """As Trinity's own: a mapping, with arguments of the constructor."""

    def __init__(self, bonus: float = 0.1):
        self.bonus = bonus

    def __call__(self, response: str, prompt: str | None = None, truth: str | None = None) -> dict[str, float]:
        return {"accuracy": float(response.endswith(str(truth))), "format_score": self.bonus * bool(prompt)}


class Open:
    def __call__(self, **kwargs: Any) -> float:
        return float(len(kwargs))


class Tokens:
    def __call__(self, response: str, response_token: object, truth: str) -> float:
        return 1.0


class Waits:
    async def __call__(self, response: str) -> float:
        return 1.0


class NoCall:
    pass


def length(response: str, most: int = 3) -> float:
    return float(len(response) > most)


def words(response: str) -> str:
    return response


def reward(path: str, **args: Any) -> TrinityReward:
    return TrinityReward(f"{HERE}:{path}", args)


def test_a_reward_by_name_sums_a_mapping_or_fails() -> None:
    found = reward("Parts", bonus=0.5)(SAMPLE)
    assert (found.score, found.metrics) == (1.5, {"accuracy": 1.0, "format_score": 0.5})
    assert reward("length", most=100)(SAMPLE).score == 0.0 and reward("length")(SAMPLE).score == 1.0
    assert reward("Open")(SAMPLE).score == 3.0
    assert TrinityReward(f"{HERE}.Parts")(SAMPLE).score == 1.1, "Trinity writes paths with dots"
    with pytest.raises(TypeError, match="a number is wanted"):
        reward("words")(SAMPLE)
    args = {"path": f"{HERE}:Parts", "args": {"bonus": 0.0}}
    config = RewardConfig.model_validate({"reward": "trinity_reward", "reward_args": args})
    assert told(config) == []
    built: Any = build_reward(config)
    assert built(SAMPLE).score == 1.0


def told(config: RewardConfig) -> list[str]:
    return [problem.text for problem in code_problems(RLVRConfig.model_construct(rewards={"math": config}))]


@cases("args, message")
def test_what_cannot_be_called_is_refused_before_the_run(args: dict[str, Any], message: str) -> None:
    config = RewardConfig.model_validate({"reward": "trinity_reward", "reward_args": args})
    problems = told(config)
    assert len(problems) == 1 and "rewards.math.reward_args" in problems[0] and message in problems[0]
