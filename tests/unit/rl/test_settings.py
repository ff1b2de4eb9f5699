"""What the keys of a configuration become."""

from typing import Any

import pytest

from roll.algorithms.advantage import AdvantageSettings
from roll.algorithms.divergence_gates import DivergenceGate, PrefixBudget
from roll.algorithms.loss import Aggregation
from roll.algorithms.objectives import (
    BoundedWeight,
    ClippedCovariance,
    ClippedGeometricMean,
    ClippedLogRatio,
    ClippedRatio,
    Objective,
    PenalizedCovariance,
    PolicyGradient,
    RatioGate,
    SoftGate,
    SquaredPenalty,
    TaperedWeight,
)
from roll.algorithms.off_policy import ImportanceWeight, MismatchFilter, TrainInferCorrection
from roll.algorithms.policy_loss import PolicyLoss
from roll.algorithms.second_moment import SecondMomentBound
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.derive import old_log_probs
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rl.settings import (
    advantage_settings,
    credit_settings,
    log_prob_diff_threshold,
    policy_loss,
    sampling_params,
    zero_gradient_rows,
)
from roll.rl.user_code import user_code_problems
from tests.helpers.cases import cases
from tests.helpers.configs import config

FILTER = {"enabled": True, "agg_type": "sequence", "ratio_low": 0.5, "ratio_high": 2.0, "diff_enabled": True}


OFF = "train_infer_correction.is_weight.enabled"


def loss_of(given: RLVRConfig) -> PolicyLoss:
    return policy_loss(given, build_plan(given))


def test_train_infer_correction_reaches_the_loss_with_all_its_keys() -> None:
    keys = {
        "is_weight": {"enabled": True, "weight_type": "geometric", "upper_bound": 2.5},
        "filters": [FILTER, {"enabled": False, "ratio_low": 0.9}],
    }
    given = config({"train_infer_correction": keys})
    assert loss_of(given).correction == TrainInferCorrection(
        ImportanceWeight("geometric", 2.5),
        (MismatchFilter("sequence", True, 0.5, 2.0, True, -0.2, 0.2),),
    )
    assert [old_log_probs(given, updates).source for updates in (1, 4)] == ["update", "pass"]


def test_losses_are_set_by_lengths_log_probs_and_clips() -> None:
    assert loss_of(config()).correction is None
    ahead = loss_of(config({"async_generation_ratio": 0.5})).correction
    assert ahead == TrainInferCorrection(ImportanceWeight("token", 1.2))
    assert loss_of(config({"async_generation_ratio": 0.5, OFF: False})).correction is None
    assert loss_of(config({"train_infer_correction.filters": [{"enabled": False}]})).correction is None
    normed = {"loss_agg_mode": "seq-mean-token-sum-norm"}
    longest = build_plan(config()).response_length
    assert loss_of(config(normed)).aggregation == Aggregation("seq-mean-token-sum-norm", longest)
    assert loss_of(config({**normed, "loss_scale_factor": 2.5})).aggregation.scale_factor == 2.5
    several = {"rollout_batch_size": 64, "force_disable_old_logprobs_recompute": True}
    assert loss_of(config(several)).old_is_rollout
    assert not loss_of(config({"rollout_batch_size": 64})).old_is_rollout
    keys = config().actor_infer.generating_args
    assert sampling_params(keys, 12).max_new_tokens == 12
    assert sampling_params(keys.model_copy(update={"max_new_tokens": 3}), 12).max_new_tokens == 3
    assert sampling_params(keys.model_copy(update={"max_new_tokens": 30}), 12).max_new_tokens == 12
    assert credit_settings(config({"reward_clip": 0.5}), 0.1).reward_clip == 0.5


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ({}, ClippedRatio(0.2, 0.2)),
        (
            {"use_pg_clip_range": True, "pg_clip_high": 0.3, "dual_clip_loss": True, "dual_clip_ratio_c": 4},
            ClippedRatio(0.2, 0.3, 4.0),
        ),
        ({"pg_clip": 0.1, "pg_clip_high": 0.3}, ClippedRatio(0.1, 0.1)),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.3}, ClippedRatio(0.2, 0.3)),
        ({"pg_variant": "vanilla"}, PolicyGradient()),
        ({"pg_variant": "opmd", "opmd_tau": 0.2}, PolicyGradient(0.2)),
        ({"pg_variant": "tis"}, BoundedWeight(0.0, 1.0)),
        ({"pg_variant": "tis", "tis_lower_bound": 0.5, "tis_upper_bound": 2}, BoundedWeight(0.5, 2.0)),
        ({"pg_variant": "cispo", "cispo_epsilon_low": 1.5, "cispo_epsilon_high": 4}, BoundedWeight(0.0, 5.0)),
        ({"pg_variant": "cispo", "cispo_use_unified_mask": True}, BoundedWeight(0.9, 1.1, drops_settled=True)),
        ({"pg_variant": "topr", "actor_train.topr_negative_weight": 0.5}, TaperedWeight(1.0, 0.5)),
        ({"actor_train.pg_variant": "kimi15", "kimi15_tau": 0.3}, SquaredPenalty(0.3)),
        ({"pg_variant": "gmpo", "gmpo_clip_high": 0.5}, ClippedGeometricMean(0.4, 0.5)),
        ({"pg_variant": "sapo", "sapo_tau_negative": 2.0}, SoftGate(1.0, 2.0)),
        (
            {"pg_variant": "clip_cov", "pg_clip": 0.3, "clip_cov_ub": 7},
            ClippedCovariance(2e-4, 1.0, 7.0, ClippedRatio(0.3, 0.3)),
        ),
        (
            {"pg_variant": "rec", "rec_clip_mode": "ring", "rec_epsilon_high": 0.3, "rec_weight": "advantage"},
            RatioGate("ring", 0.2, 0.3, 0.6, 2.0, "advantage", 1.0, "none", 0.1),
        ),
        ({"pg_variant": "sppo", "sppo_epsilon": 0.5}, ClippedLogRatio(0.5)),
        (
            {"pg_variant": "cppo", "cppo_threshold": 0.2, "cppo_budget_quantile": 0.95},
            PrefixBudget(0.2, 0.8, 0.02, 0.95, 1.0, 20.0),
        ),
        ({"pg_variant": "m2po", "m2po_threshold": 0.1}, SecondMomentBound(0.1)),
        ({"pg_variant": "dppo", "dppo_divergence": "kl", "dppo_clip_low": 0.1}, DivergenceGate("kl", 0.1, 0.2, 20.0)),
        ({"pg_variant": "kl_cov", "kl_cov_ratio": 0.5, "ppo_kl_coef": 2}, PenalizedCovariance(0.5, 2.0)),
    ],
)
def test_pg_variant_and_its_keys_choose_the_objective(keys: dict[str, Any], objective: Objective) -> None:
    assert loss_of(config(keys)).objective == objective


def test_keys_of_an_estimator_reach_its_function_and_only_pass_at_k_takes_a_deviation() -> None:
    given = config({"adv_estimator": "asymre", "asymre_baseline_shift": -0.3})
    assert advantage_settings(given) == AdvantageSettings("asymre", args={"asymre_baseline_shift": -0.3})
    given = config({"adv_estimator": "opmd", "opmd_baseline": "logavgexp", "opmd_baseline_tau": 2})
    args = {"opmd_baseline": "logavgexp", "opmd_baseline_tau": 2.0}
    assert advantage_settings(given) == AdvantageSettings("opmd", args=args)
    given = config({"adv_estimator": "raft", "raft_keep": "positive"})
    assert advantage_settings(given) == AdvantageSettings("raft", args={"raft_keep": "positive"})
    lead = config({"adv_estimator": "grpo_passk", "norm_std_type": "none"})
    assert user_code_problems(lead) == [] and advantage_settings(lead).norms == (None, None)
    for keys in (
        {"adv_estimator": "grpo_passk", "norm_mean_type": "batch"},
        {"adv_estimator": "opo", "norm_std_type": "group"},
    ):
        (problem,) = user_code_problems(config(keys))
        assert "says by itself what a reward is worth" in problem.text


@cases("train, infer, keeps_kv, threshold")
def test_a_difference_of_log_probs_is_warned_of_by_the_coarser_dtype(
    train: str, infer: str, keeps_kv: bool, threshold: float
) -> None:
    """Above what pretrained models have: a mean of .035 to .05 in bf16, of 1e-5 in fp32."""
    dtypes: dict[str, object] = {"actor_train.model_args.dtype": train, "actor_infer.model_args.dtype": infer}
    assert log_prob_diff_threshold(config(dtypes), keeps_kv) == threshold
    assert log_prob_diff_threshold(config(dtypes | {"log_prob_diff_warning": 0.3}), keeps_kv) == 0.3


@cases("changes, skips")
def test_rows_without_advantage_are_left_out_unless_a_term_moves_them(changes: dict[str, Any], skips: bool) -> None:
    assert (zero_gradient_rows(config(changes)) is not None) == skips
