"""Evaluation sets: their keys, their checks, and how they are answered beside each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roll.pipeline.rlvr.prompt_rollouter import PromptRollouter, request_seed
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rl.evaluation import Validation, ValidationSet
from roll.types.rollout import Generation, GenerationRequest, SamplingParams, Task
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

SETS: dict[str, Any] = {
    "eval_sets.sums.data_args.file_name": "sums.jsonl",
    "eval_sets.hard.data_args.file_name": ["a.jsonl", "b.jsonl"],
    "eval_sets.hard.generating_args": {"temperature": 0.7, "num_return_sequences": 4},
}


def test_sets_stand_beside_the_validation_and_are_greedy_unless_told_otherwise() -> None:
    made = config({**SETS, "validation.data_args.file_name": "test.jsonl"})
    assert [(one.name, one.at, one.purpose) for one in made.validated] == [
        ("", "validation", "validation"),
        ("sums", "eval_sets.sums", "validation/sums"),
        ("hard", "eval_sets.hard", "validation/hard"),
    ]
    assert [one.generating_args.temperature for one in made.validated] == [0.0, 0.0, 0.7]
    assert config(SETS).missing_validation == ""
    assert config({}).missing_validation == "validation"


@cases("changes, said")
def test_what_cannot_be_is_said_with_its_key(changes: dict[str, Any], said: str) -> None:
    assert any(said in text for text in problems({**SETS, **changes})), problems({**SETS, **changes})
    assert problems(SETS) == []


class LengthReward:
    """The reward of an answer is how many tokens it has."""

    def scores_alone(self, domain: str) -> bool:
        return False

    async def score(self, domain: str, inputs: list[RewardInput], places: Any = ()) -> list[RewardOutcome]:
        return [RewardOutcome(float(one.num_response_tokens)) for one in inputs]


@dataclass
class Engine:
    """Answers with as many tokens as the prompt has, and says what it was asked."""

    asked: list[GenerationRequest] = field(default_factory=list)
    at_once: int = 0
    most: int = 0

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        self.asked.append(request)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        count = len(request.prompt_ids)
        made = Generation(np.ones(count, np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), "stop")
        return [made] * request.num_samples


def validation_set(name: str, num_tasks: int, length: int, num_answers: int) -> ValidationSet:
    rollouter = PromptRollouter(
        rewards=LengthReward(),
        decode=lambda ids: ["" for _ in ids],
        sampling=SamplingParams(max_new_tokens=12),
        group_size=num_answers,
        seed=3,
        purpose=f"validation/{name}",
    )
    tasks = [Task(f"{name}{i}", "math", np.ones(length, np.int32)) for i in range(num_tasks)]
    return ValidationSet(name, tasks, rollouter)


def test_sets_are_answered_at_once_and_measured_apart() -> None:
    engine, sets = Engine(), [validation_set("sums", 3, 2, 1), validation_set("hard", 2, 5, 4)]
    validation = Validation(sets, most_at_once=2)
    groups = asyncio.run(validation.answer(engine))
    assert engine.most == 2
    assert {name: len(found) for name, found in validation.by_set(groups).items()} == {"sums": 3, "hard": 2}
    metrics = validation.metrics(groups)
    assert (metrics["val/sums/reward_mean"], metrics["val/hard/reward_mean"]) == (2.0, 5.0)
    assert metrics["val/reward_mean"] == 3.5
    assert {"val/hard/pass_at_2", "val/hard/pass_at_4"} < metrics.keys()


def test_the_random_streams_of_a_set_hang_on_its_name_and_not_on_its_neighbours() -> None:
    alone, beside = Engine(), Engine()
    asyncio.run(Validation([validation_set("hard", 2, 5, 4)], 8).answer(alone))
    asyncio.run(Validation([validation_set("sums", 3, 2, 1), validation_set("hard", 2, 5, 4)], 8).answer(beside))
    of_hard = [request for request in beside.asked if request.num_samples == 4]
    assert [r.sampling.seed for r in alone.asked] == [r.sampling.seed for r in of_hard]
    assert [r.sampling.seed for r in of_hard] == [request_seed(3, "validation/hard", i) for i in (0, 1)]
    assert len({r.request_id for r in beside.asked}) == 5
