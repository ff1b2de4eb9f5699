"""Keys that count while another is on are named where it is off, and only there."""

from typing import Any

import pytest

from roll.configs.checks.rl import config_warnings
from roll.configs.checks.roles import AGENTIC, RL, RLVR, ROLE, run_warnings, switched_off
from roll.configs.plan.batch_plan import build_plan
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.configs import config


def said(changes: dict[str, Any]) -> list[str]:
    made = config(changes)
    found = [*run_warnings(made, build_plan(made)), *config_warnings(made), *rlvr_warnings(made)]
    return [text for text in found if " nothing" in text]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kl_loss_type": "k1"}, "kl_loss_type does nothing while use_kl_loss is off."),
        (
            {"rollout_mock": {"mode": "mock", "dump_dir": "x"}},
            "rollout_mock.mode and rollout_mock.dump_dir do nothing while rollout_mock.enable is off.",
        ),
        ({"difficulty_low_threshold": 0.2}, "difficulty_low_threshold does nothing while difficulty_mask is off."),
        ({"error_max_len_threshold": 9}, "error_max_len_threshold does nothing while error_max_len_clip is off."),
        (
            {"rewards.math.dynamic_timeout": {"ratio": 2.0}},
            "rewards.math.dynamic_timeout.ratio does nothing while rewards.math.dynamic_timeout.enable is off.",
        ),
        (
            {"actor_train.max_tokens_per_microbatch_in_train": 9000},
            "actor_train.max_tokens_per_microbatch_in_train does nothing while "
            "actor_train.use_dynamic_batching_in_train is off.",
        ),
        (
            {"actor_train.training_args.warmup_steps": 5, "actor_train.training_args.warmup_ratio": 0.1},
            "actor_train.training_args.warmup_ratio does nothing: warmup_steps: 5 says how long the warm-up is.",
        ),
        (
            {"rewards.math.query_filter_config": {"filter_args": {"std_threshold": 1}}},
            "rewards.math.query_filter_config.filter_args does nothing with type: no_filter.",
        ),
        ({"on_empty": "fail"}, "on_empty does nothing: no query_filter_config drops a group."),
        (
            {"is_use_additional_prompts": True},
            "is_use_additional_prompts does nothing: no query_filter_config drops a group.",
        ),
    ],
)
def test_a_key_whose_switch_is_off_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in said(changes)


def test_with_its_switch_on_it_is_not() -> None:
    keys = {
        "difficulty_mask": True,
        "rewards.math.dynamic_timeout": {"enable": True, "ratio": 2.0},
        "difficulty_low_threshold": 0.2,
        "actor_train.use_dynamic_batching_in_train": True,
        "actor_train.max_tokens_per_microbatch_in_train": 9000,
        "rewards.math.query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0.1}},
        "is_use_additional_prompts": True,
    }
    assert said(keys) == said({}) == []


@pytest.mark.parametrize(
    ("cls", "switches"), [(RLVRConfig, RL), (RLVRConfig, RLVR), (AgenticConfig, RL), (AgenticConfig, AGENTIC)]
)
def test_every_key_of_the_tables_is_one_of_the_settings(cls: type, switches: dict[str, tuple[str, ...]]) -> None:
    made = config() if cls is RLVRConfig else AgenticConfig()
    for switch, keys in switches.items():
        assert made.value(switch) in (True, False)
        assert [key for key in keys if made.is_changed(key)] == []
    assert list(switched_off(config().actor_train, ROLE)) == []
