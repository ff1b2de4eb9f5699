"""The audit of rewards: it finds planted holes, and accuses no sound reward, the shelf's own among them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from roll.doctor.audit import audit
from roll.doctor.machine import Finding
from roll.types.rollout import Task
from tests.helpers.configs import config
from tests.unit.doctor import holes

NUMBERS = [int(each) for each in np.random.default_rng(0).integers(10_000_000, 99_999_999, 16)]
TASKS = [
    Task(
        str(place), "sums", np.zeros(4, np.int32), f"What is {number - 7} + 7?",
        {"ground_truth": str(number)}, question=f"What is {number - 7} + 7?",
    )
    for place, number in enumerate(NUMBERS)
]  # fmt: skip


def audited(reward: str, tasks: Sequence[Task] = TASKS, **settings: object) -> list[Finding]:
    return list(audit(config({"rewards": {"sums": {"reward": reward, **settings}}}), "sums", tasks))


def problems(findings: Sequence[Finding]) -> list[str]:
    return [finding.what for finding in findings if finding.level == "problem"]


@pytest.mark.parametrize("name", holes.HOLES)
def test_a_planted_hole_is_found(name: str) -> None:
    assert problems(audited(f"tests.unit.doctor.holes:{name}")), name


@pytest.mark.parametrize("name", holes.SOUND)
def test_a_sound_reward_is_not_accused(name: str) -> None:
    assert problems(audited(f"tests.unit.doctor.holes:{name}")) == []


SHELF: list[dict[str, Any]] = [
    {"reward": "math_rule"},
    {"reward": "math_rule", "reward_args": {"require_boxed": True}},
    {"reward": "exact_match"},
    {"reward": "exact_match", "reward_args": {"pattern": "<answer>(.*)</answer>"}},
    {"reward": "general_rule"},
    {"reward": "verl_function", "reward_args": {"path": "tests.unit.doctor.holes"}},
]


@pytest.mark.parametrize("settings", SHELF)
def test_rewards_of_the_shelf_are_sound(settings: dict[str, Any]) -> None:
    assert problems(audited(**settings)) == []


def test_a_finding_says_what_earns_and_shows_it() -> None:
    (found,) = [each for each in audited("tests.unit.doctor.holes:believes") if each.level == "problem"]
    assert found.what == "rewards.sums: a claim to be right earns 100% of what a right response does"
    assert found.where == "rewards.sums" and "This response is correct" in found.observed


def test_rows_without_a_truth_and_rewards_by_a_model_are_told() -> None:
    bare = [Task(task.task_id, "sums", task.prompt_ids, task.prompt_text) for task in TASKS]
    assert any("no truth" in each.what for each in audited("tests.unit.doctor.holes:only_form", bare))
