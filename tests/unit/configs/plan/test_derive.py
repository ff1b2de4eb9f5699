"""Which roles and passes a run needs."""

from typing import Any

import pytest

from roll.configs.plan.derive import (
    compares_vocabulary,
    compares_within_groups,
    needs_ref_log_probs,
    old_log_probs,
    weighs_importance,
)
from roll.configs.tables.estimators import ESTIMATORS
from tests.helpers.configs import config


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"init_kl_coef": 0.2}, False),  # a coefficient alone switches nothing on
        ({"kl_loss_coef": 0.1}, False),
        ({"use_kl_loss": True}, False),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, True),
        ({"add_token_level_kl": True}, True),
        ({"add_token_level_kl": True, "init_kl_coef": 0}, False),
        ({"enable_reference": True}, True),
    ],
)
def test_a_reference_is_needed_exactly_when_a_term_uses_it(changes: dict[str, Any], needed: bool) -> None:
    assert config(changes).needs_reference is needed


def test_only_gae_needs_a_critic() -> None:
    assert config({"adv_estimator": "gae"}).needs_critic
    assert not config({"adv_estimator": "reinforce"}).needs_critic


@pytest.mark.parametrize(
    ("changes", "updates", "source"),
    [
        ({}, 1, "update"),
        ({}, 4, "pass"),
        ({"add_token_level_kl": True}, 1, "pass"),
        ({"enable_old_logprobs_recompute": True}, 1, "pass"),
        ({"adv_estimator": "optimal_token_baseline"}, 1, "pass"),
        ({"force_disable_old_logprobs_recompute": True}, 1, "update"),
        ({"force_disable_old_logprobs_recompute": True}, 4, "rollout"),
        ({"force_disable_old_logprobs_recompute": True, "add_token_level_kl": True}, 1, "rollout"),
        # with groups ahead: the loss is weighted by itself, from the update's own log-probs
        ({"async_generation_ratio": 1}, 1, "update"),
        ({"async_generation_ratio": 1}, 4, "pass"),
        ({"async_generation_ratio": 1, "force_disable_old_logprobs_recompute": True}, 1, "rollout"),
        (
            {
                "async_generation_ratio": 1,
                "force_disable_old_logprobs_recompute": True,
                "train_infer_correction.is_weight.enabled": True,
            },
            1,
            "update",
        ),
        # tokens of a whole update are chosen before it begins
        ({"pg_variant": "clip_cov"}, 1, "pass"),
        ({"actor_train.pg_variant": "kl_cov"}, 4, "pass"),
        ({"pg_variant": "kl_cov", "force_disable_old_logprobs_recompute": True}, 1, "rollout"),
        # vllm's log-probs are then those of another distribution: they are not used
        ({"force_disable_old_logprobs_recompute": True, "actor_infer.generating_args.top_p": 0.9}, 4, "pass"),
        ({"force_disable_old_logprobs_recompute": True, "actor_infer.generating_args.min_new_tokens": 2}, 4, "pass"),
        (
            {
                "force_disable_old_logprobs_recompute": True,
                "actor_infer.generating_args.top_p": 0.9,
                "actor_infer.strategy_args.strategy_name": "sglang",
            },
            4,
            "rollout",
        ),
    ],
)
def test_old_log_probs_come_from_where_the_rules_say(changes: dict[str, Any], updates: int, source: str) -> None:
    assert old_log_probs(config(changes), updates).source == source


@pytest.mark.parametrize(
    ("changes", "weighs"),
    [
        ({}, False),
        ({"actor_train.model_update_frequency": 2}, False),
        ({"async_generation_ratio": 0.1}, True),
        ({"async_generation_ratio": 0.1, "train_infer_correction.is_weight.enabled": False}, False),
        ({"train_infer_correction.is_weight.enabled": True}, True),
        # the policy ratio is to what sampled already
        ({"async_generation_ratio": 1, "force_disable_old_logprobs_recompute": True}, False),
        # the engine's log-probs are of another distribution
        ({"async_generation_ratio": 1, "actor_infer.generating_args.top_p": 0.9}, False),
    ],
)
def test_where_rollouts_run_ahead_the_loss_is_weighted_unless_something_else_corrects(
    changes: dict[str, Any], weighs: bool
) -> None:
    assert weighs_importance(config(changes)) is weighs


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_estimator_takes_a_second_pass(estimator: str) -> None:
    halves = old_log_probs(config({"adv_estimator": estimator}), 1).halves
    assert halves == (estimator == "optimal_token_baseline")
    assert not old_log_probs(config({"adv_estimator": estimator, "is_pure_opd": True}), 1).halves


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_which_estimators_compare_within_groups_is_what_their_norms_say(estimator: str) -> None:
    means_are_groups = ESTIMATORS[estimator].mean in ("group", "leave_one_out")
    assert compares_within_groups(config({"adv_estimator": estimator})) is means_are_groups
    if estimator not in ("step_reinforce", "agentic_reinforce"):
        assert compares_within_groups(config({"adv_estimator": estimator, "norm_mean_type": "group"}))
    assert not compares_within_groups(config({"adv_estimator": estimator, "norm_mean_type": "batch"}))


def test_whole_distributions_are_compared_by_the_loss_alone() -> None:
    """A KL in the reward asks the reference for log-probs, whatever `kl_loss_type` says of a loss that is off."""
    full = {"kl_loss_type": "full"}
    in_loss = config({**full, "use_kl_loss": True, "kl_loss_coef": 0.1})
    in_reward = config({**full, "add_token_level_kl": True, "init_kl_coef": 0.1})
    assert (compares_vocabulary(in_loss), needs_ref_log_probs(in_loss)) == (True, False)
    assert (compares_vocabulary(in_reward), needs_ref_log_probs(in_reward)) == (False, True)
