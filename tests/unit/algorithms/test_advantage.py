from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.configs.tables.estimators import ESTIMATORS

NAN = float("nan")


def values_of(rewards: list[float], groups: list[int], setting: AdvantageSettings) -> list[float]:
    return group_advantages(np.array(rewards, np.float32), np.array(groups), setting)[0].tolist()


def test_examples_of_the_docstring() -> None:
    rewards, groups = [1, 0, 0, NAN], [0, 0, 0, 0]
    assert values_of(rewards, groups, AdvantageSettings("grpo")) == pytest.approx(
        [1.1547, -0.57735, -0.57735, 0], abs=1e-5
    )
    assert values_of(rewards, groups, AdvantageSettings("rloo")) == [1, -0.5, -0.5, 0]
    assert values_of(rewards, groups, AdvantageSettings("reinforce")) == [1, 0, 0, 0]
    assert values_of(rewards, groups, AdvantageSettings("gae")) == [1, 0, 0, 0]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("reward", [0.1, 1.0, -7.3, 1e6])
def test_group_with_equal_rewards_gets_exactly_zero(estimator: str, reward: float) -> None:
    assert values_of([reward] * 7 + [0, 2], [4] * 7 + [9, 9], AdvantageSettings(estimator))[:7] == [0.0] * 7


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_single_attempt_has_nothing_to_compare_with(estimator: str) -> None:
    assert values_of([5, 3, NAN], [0, 1, 1], AdvantageSettings(estimator)) == [0, 0, 0]


def test_norms_are_of_the_domain_divide_by_no_zero_and_come_before_the_clip() -> None:
    assert values_of([2, 2], [0, 0], AdvantageSettings("reinforce", norm_std_type="group")) == [2, 2]
    mixed = AdvantageSettings("reinforce", norm_mean_type="batch", norm_std_type="group")
    assert values_of([2, 2, 5, 5], [0, 0, 1, 1], mixed) == [-1.5, -1.5, 1.5, 1.5]
    rewards, groups = np.array([0.0, 2.0, 10.0, 14.0]), np.array([0, 1, 2, 3])
    setting = AdvantageSettings("reinforce", norm_mean_type="batch")
    assert group_advantages(rewards, groups, setting)[0].tolist() == [-6.5, -4.5, 3.5, 7.5]
    values, _ = group_advantages(rewards, groups, setting, domains=np.array(["a", "a", "b", "b"]))
    assert values.tolist() == [-1, 1, -2, 2]
    setting = AdvantageSettings("grpo", norm_std_type=None, reward_clip=2.0)
    values, metrics = group_advantages(np.array([0.0, 10.0, 3.0, 5.0, NAN]), np.array([0, 0, 1, 1, 1]), setting)
    assert values.tolist() == [-2, 2, -1, 1, 0]
    assert metrics["reward_clip_fraction"] == 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_all_failed_and_no_rows_give_zeros_and_no_metrics(estimator: str) -> None:
    setting = AdvantageSettings(estimator, reward_clip=1.0)
    values, metrics = group_advantages(np.array([NAN, NAN]), np.array([-1, -1]), setting)
    assert values.tolist() == [0, 0]
    assert metrics == {"reward_clip_fraction": 0.0}
    assert len(group_advantages(np.array([]), np.array([], np.int64), setting)[0]) == 0


@settings(max_examples=50)
@given(
    rewards=st.lists(st.one_of(st.floats(-10, 10, width=32), st.just(NAN)), min_size=1, max_size=12),
    estimator=st.sampled_from(["grpo", "rloo", "reinforce_plus_plus_baseline"]),
    seed=st.integers(0, 99),
)
def test_values_of_a_group_sum_to_zero_and_follow_their_rows(rewards: list[float], estimator: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, order = rng.integers(0, 3, len(rewards)), rng.permutation(len(rewards))
    values, _ = group_advantages(np.array(rewards), groups, AdvantageSettings(estimator))
    shuffled, _ = group_advantages(np.array(rewards)[order], groups[order], AdvantageSettings(estimator))
    np.testing.assert_allclose(shuffled, values[order], rtol=1e-5, atol=1e-5)
    for group in np.unique(groups):
        assert values[groups == group].sum() == pytest.approx(0, abs=1e-3)


def test_metrics_by_hand() -> None:
    _, metrics = group_advantages(
        np.array([1, 1, 0, 2, NAN, 6]), np.array([0, 0, 1, 1, 2, 2]), AdvantageSettings("grpo")
    )
    assert metrics["reward_mean"] == 2
    assert metrics["reward_max"] == 6
    assert metrics["reward_min"] == 0
    assert metrics["group_equal_rewards_fraction"] == 0.5  # of the two groups with more than one attempt
    assert metrics["group_reward_std_mean"] == pytest.approx(np.sqrt(2) / 2)
