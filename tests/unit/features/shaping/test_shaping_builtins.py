"""Reward shaping against slow loops in float64, and filters by name."""

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.operators import MeanFilterArgs, RewardShapingArgs, StdFilterArgs
from roll.errors import AlgorithmError
from roll.features.shaping.builtins import RewardShaping, mean_filter, std_filter
from roll.types.rollout import TrajectoryGroup
from tests.unit.features.shaping.groups import group, of_two_rows


def shaped(groups: list[TrajectoryGroup], **args: Any) -> list[list[float]]:
    return [made.rewards.tolist() for made in RewardShaping(RewardShapingArgs(**args))(groups)]


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def slow(op: str, reward: float, value: float) -> float:
    return {
        "add": reward + value,
        "subtract": reward - value,
        "multiply": reward * value,
        "divide": reward / value if value else math.inf,
        "replace": value,
    }[op]


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide", "replace"])
def test_a_stat_as_it_is(op: str) -> None:
    (found,) = shaped([group(0, 1.0, 0.5, None)], stat="response_length", op=op, weight=0.5)
    assert found[:2] == [slow(op, 1.0, 1.0), slow(op, 0.5, 1.5)] and math.isnan(found[2])


@pytest.mark.parametrize("scale", ["group", "running"])
def test_a_scaled_stat_is_that_of_a_slow_loop(scale: str) -> None:
    """Three steps of random rewards, with failed attempts, equal groups and two domains: means and sample deviations
    (n - 1) are taken anew from all values, in another way than the running update. 1e-12 for its rounding."""
    args = RewardShapingArgs.model_validate({"scale": scale, "op": "add", "weight": 0.3})
    chance, operator = random.Random(3), RewardShaping(args)
    seen: dict[str, list[float]] = {"math": [], "code": []}
    for step in range(3):
        rewards: list[list[float | None]] = [
            [None if chance.random() < 0.2 else chance.gauss(1, 2) for _ in range(4)] for _ in range(4)
        ]
        rewards += [[1.0, 1.0, 1.0, 1.0], [2.0, None, None, None]]
        domains = ["math", "code"] * 3
        groups = [group(10 * step + i, *some, domain=domains[i]) for i, some in enumerate(rewards)]
        for domain, some in zip(domains, rewards, strict=True):
            seen[domain] += [value for value in some if value is not None]
        for domain, some, made in zip(domains, rewards, operator(groups), strict=True):
            known = [value for value in some if value is not None]
            if not known:
                continue
            mean, deviation = mean_and_deviation(known if scale == "group" else seen[domain])
            divisor = deviation + 1e-6 if deviation else 1.0
            expected = [np.nan if value is None else value + 0.3 * (value - mean) / divisor for value in some]
            np.testing.assert_allclose(made.rewards, expected, rtol=1e-12, atol=1e-12)


def test_a_state_goes_on_bit_for_bit_through_json() -> None:
    args = RewardShapingArgs(scale="running", op="replace")
    whole, first, second = (RewardShaping(args) for _ in range(3))
    steps = [[group(i, 0.1 * i, 0.7, None, 0.3)] for i in range(6)]
    expected = [whole(groups)[0].rewards.tolist() for groups in steps]
    for groups in steps[:3]:
        first(groups)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found = [second(groups)[0].rewards.tolist() for groups in steps[3:]]
    assert str(found) == str(expected[3:])  # as texts, in which NaN is itself


def test_stats_are_of_attempts_and_filters_those_of_query_filter_config() -> None:
    (made,) = RewardShaping(RewardShapingArgs(weight=-1.0))([of_two_rows(group(0, 1.0, None))])
    assert [row.reward for row in made.trajectories[:2]] == [0.0, 0.0]
    assert [row.extra for row in made.trajectories] == [{"sampled_reward": 1.0}] * 2 + [{}] * 2
    (again,) = RewardShaping(RewardShapingArgs(stat="response_length"))([made])
    assert again.trajectories[0].extra == {"sampled_reward": 1.0}
    assert shaped([group(0, 1.0, 1.0)], stat="score", weight=2.0) == [[1.0, 3.0]]
    with pytest.raises(AlgorithmError, match="reports no 'length'; it has reward, response_length, score"):
        shaped([group(0, 1.0)], stat="length")
    with pytest.raises(AlgorithmError, match="divide by score makes the reward 1 of an attempt at 7 inf"):
        shaped([group(7, 1.0, 1.0)], stat="score", op="divide")
    groups = [group(0, 1.0, 1.0), group(1, 1.0, 0.0), group(2, 0.0, 0.0)]
    assert [made.group_id for made in std_filter(StdFilterArgs())(groups)] == [1]
    assert [made.group_id for made in mean_filter(MeanFilterArgs(threshold_down=0.0))(groups)] == [0, 1]
    assert [made.group_id for made in mean_filter(MeanFilterArgs(threshold_up=0.5))(groups)] == [2]
