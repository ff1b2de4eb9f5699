"""Settings of retries, limits and redundancy: what contradicts itself, and the names that Trinity-RFT has for them."""

from __future__ import annotations

from typing import Any

import pytest

from roll.configs.load.aliases import apply_aliases
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.configs import config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rewards.math.timeout_s": 2, "rewards.math.dynamic_timeout": {"enable": True, "min_s": 3}},
            "rewards.math.dynamic_timeout.min_s: 3 is above rewards.math.timeout_s: 2, the longest limit there is.",
        ),
        (
            {"group_size_redundancy": 2, "actor_infer.generating_args.temperature": 0},
            "group_size_redundancy: 2, but actor_infer.generating_args.temperature is 0: all responses to a prompt are",
        ),
        (
            {"group_size_redundancy": 2, "rollout_mock": {"enable": True, "mode": "mock"}},
            "group_size_redundancy: 2, but with rollout_mock.mode: mock nothing is sampled",
        ),
        (
            {"num_return_sequences_in_group": 6, "group_size_redundancy": 3, "max_running_requests": 8},
            "group_size_redundancy: 3 and num_return_sequences_in_group: 6 make 9 responses, but an engine runs 8 at "
            "once (max_running_requests), so the last ones would wait for others. Set",
        ),
        (
            {
                "num_return_sequences_in_group": 6,
                "group_size_redundancy": 3,
                "actor_infer.strategy_args": {"strategy_name": "vllm", "strategy_config": {"max_num_seqs": 8}},
            },
            "engine runs 8 at once (actor_infer.strategy_args.strategy_config.max_num_seqs), so the last ones would",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(changes: dict[str, Any], said: str) -> None:
    (problem,) = [problem.text for problem in rlvr_problems(config(changes))]
    assert said in problem


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
