"""Filters and settings of rewards."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from roll.configs.load.known_keys import apply_aliases
from roll.distributed.scheduler.filters import by_domain, filter_problems, make_filter
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from tests.helpers.cases import cases
from tests.helpers.configs import config

NAN = float("nan")


def group(*rewards: float, domain: str = "math") -> TrajectoryGroup:
    token = np.zeros(1, np.int32)
    prompt, generation = token, Generation(token, np.zeros(1, np.float32), token, "stop")
    trajectories = tuple(
        Trajectory.from_generation(
            prompt, generation, reward, index=i, response_text="", failure="x" if np.isnan(reward) else None
        )
        for i, reward in enumerate(rewards)
    )
    return TrajectoryGroup(Task("t", domain, prompt), 0, trajectories)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ((1, 0), True),
        ((1, 1, 0, 1), True),
        ((0, 0), False),
        ((1, 1), False),
        ((0, 0, 0, 0, 1), False),
        ((1, NAN, NAN), True),
    ],
)
def test_mean_filter_keeps_what_lies_strictly_between(rewards: tuple[float, ...], kept: bool) -> None:
    assert make_filter("mean_filter", {"threshold_down": 0.2, "threshold_up": 0.9})(group(*rewards)) is kept


@pytest.mark.parametrize(
    ("rewards", "threshold", "kept"),
    [
        ((1, 1, 1), 0, False),
        ((1, 0), 0, True),
        ((1, 0), 0.7, True),
        ((1, 0), 0.71, False),
        ((1, 1, NAN), 0, False),
        ((NAN,), 0, True),
    ],
)
def test_std_filter_drops_groups_without_spread(rewards: tuple[float, ...], threshold: float, kept: bool) -> None:
    assert make_filter("std_filter", {"std_threshold": threshold})(group(*rewards)) is kept


@pytest.mark.parametrize("size", range(2, 20))
def test_equal_rewards_have_no_spread_and_their_own_mean_whatever_they_are(size: int) -> None:
    """Sums of 0.1 and the like are rounded: the deviation of 0.1 0.1 0.1 must not be 1.7e-17, nor its mean above
    0.1."""
    spread = make_filter("std_filter", {"std_threshold": 0})
    for reward in (hundredth / 100 for hundredth in range(-100, 101)):
        below, above = (make_filter("mean_filter", {name: reward}) for name in ("threshold_down", "threshold_up"))
        made = group(*[reward] * size, NAN)
        assert not spread(made) and not below(made) and not above(made), reward


def test_each_domain_has_its_own_filter_or_none() -> None:
    assert make_filter("no_filter", {})(group(0, 0))
    assert make_filter("mean_filter", {"threshold_up": 0.9})(group(0, 0))
    keep = by_domain({"math": make_filter("std_filter", {"std_threshold": 0}), "chat": make_filter("no_filter", {})})
    assert not keep(group(1, 1)) and keep(group(1, 1, domain="chat"))


def test_a_group_that_a_filter_looked_at_is_gone_with_its_last_name() -> None:
    """Its handles on tokens in the object store must not wait for the collector of cycles."""
    one = group(1, 0)
    gone = weakref.ref(one)
    gc.disable()
    try:
        assert make_filter("std_filter", {"std_threshold": 0})(one)
        del one
        assert gone() is None
    finally:
        gc.enable()


@cases("type_, args, message")
def test_arguments_that_do_not_fit_are_named(type_: str, args: dict[str, Any], message: str) -> None:
    (problem,) = filter_problems(type_, args, "k")
    assert message in problem
    assert filter_problems("std_filter", {"std_threshold": 0.1}, "k") == []


def test_what_fits_is_not() -> None:
    changes = {
        "num_return_sequences_in_group": 6,
        "group_size_redundancy": 2,
        "max_running_requests": 8,
        "rewards.math.dynamic_timeout": {"enable": True},
        "rewards.math.reward_retries": 2,
    }
    assert rlvr_problems(config(changes)) == []


def test_trinitys_retries_are_those_of_rewards_and_of_environments() -> None:
    rlvr = {"rewards": {"math": {"max_retry_times": 2}}}
    agentic = {"train_env_manager": {"max_retry_times": 2}}
    assert apply_aliases(RLVRConfig, rlvr) == ([], []) == apply_aliases(AgenticConfig, agentic)
    assert rlvr == {"rewards": {"math": {"reward_retries": 2}}}
    assert agentic == {"train_env_manager": {"env_retries": 2}}
