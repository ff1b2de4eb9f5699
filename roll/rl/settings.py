"""Converts keys of a YAML to the settings of algorithms. It is the one place where the two vocabularies meet."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from roll.algorithms.advantage import AdvantageSettings
from roll.algorithms.credit import CreditSettings
from roll.algorithms.kl import KLController
from roll.algorithms.loss import Aggregation, Loss
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.objectives import ClippedCovariance, CovarianceChoice, Objective, PenalizedCovariance
from roll.algorithms.off_policy import ImportanceWeight, MismatchFilter, TrainInferCorrection
from roll.algorithms.policy_loss import ExpertLoss, MixedLoss, PolicyLoss, ValueLoss
from roll.algorithms.second_moment import SecondMomentBound, SecondMomentChoice
from roll.algorithms.user_objective import UserObjective
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.derive import moves_idle_rows, weighs_importance
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import GeneratingArgs
from roll.types.rollout import SamplingParams
from roll.utils.imports import resolve


def advantage_settings(config: AlgorithmConfig) -> AdvantageSettings:
    return AdvantageSettings(
        estimator=config.adv_estimator,
        norm_mean_type=config.norm_mean_type,
        norm_std_type=config.norm_std_type,  # type: ignore[arg-type]
        reward_clip=config.reward_clip,
        args=config.estimator_args,
    )


def kl_controller(config: AlgorithmConfig) -> KLController:
    return KLController(config.init_kl_coef, config.target_kl, config.kl_horizon)


def credit_settings(config: AlgorithmConfig, kl_coef: float, version: int = 0) -> CreditSettings:
    """`version`: of the weights that learn."""
    return CreditSettings(
        estimator=config.adv_estimator,
        gamma=config.gamma,
        lambd=config.lambd,
        add_token_level_kl="add_token_level_kl" in config.kl_terms,
        kl_coef=kl_coef,
        kl_penalty=config.kl_penalty,  # type: ignore[arg-type]  # "full" is refused
        reward_clip=config.reward_clip,
        whiten_rewards=config.whiten_rewards,
        whiten_advantages=config.whiten_advantages,
        keeps_zero=advantage_settings(config).compares_groups,
        advantage_clip=config.advantage_clip,
        teacher_alone=config.is_pure_opd,
        teacher_share=config.opd_js_weight if config.opd_advantage == "js_divergence" else None,
        version=version if config.is_async else None,
        max_lag=config.max_token_staleness,
    )


def teacher_weights(config: AlgorithmConfig, domains: np.ndarray) -> np.ndarray | None:
    """How much what its teacher says counts in each row; None where there is no teacher."""
    weights = {domain: config.teacher_weight(role) for domain, role in config.teacher_of.items()}
    return np.array([weights[domain] for domain in domains.tolist()]) if weights else None


def policy_loss(config: AlgorithmConfig, plan: BatchPlan, rl_loss_coef: float = 1.0) -> PolicyLoss:
    return PolicyLoss(
        objective=_objective(config),
        importance_sampling=config.importance_sampling,
        aggregation=Aggregation(config.loss_agg_mode, config.loss_scale_factor or plan.response_length),
        kl_loss_coef=config.kl_loss_coef if "use_kl_loss" in config.kl_terms else 0.0,
        kl_loss_estimator=config.kl_loss_type,
        entropy_loss_coef=config.entropy_loss_coef,
        rl_loss_coef=rl_loss_coef,
        report_entropy=True,
        correction=_correction(config),
        old_is_rollout=plan.old_log_probs.source == "rollout",
        max_lag=plan.bounds.max_staleness,
    )


def mixed_loss(config: AlgorithmConfig, policy: Loss, weight: float) -> MixedLoss:
    """The loss of an update in which an expert's rows weigh so much."""
    return MixedLoss(policy, ExpertLoss(config.mix.token_weights, Aggregation(config.mix.loss_agg_mode)), weight)


def zero_gradient_rows(config: AlgorithmConfig) -> ZeroGradientRows | None:
    """Return the rule for rows that the policy loss can skip; None: it sees all."""
    skips = config.skip_idle_rows
    if skips is None:  # a reference that is there to be compared with is compared with every row
        skips = not moves_idle_rows(config) and not config.enable_reference
    return ZeroGradientRows(counts_tokens=config.loss_agg_mode == "token-mean") if skips else None


def log_prob_diff_threshold(config: AlgorithmConfig, keeps_kv: bool) -> float:
    """Mean difference of engine and trainer above which a run warns. `keeps_kv`: keys and values of old weights add to
    it."""
    by_dtype = {"bf16": 0.1, "fp16": 0.03, "fp32": 0.005}
    rounding = max(by_dtype[worker.model_args.dtype] for worker in (config.actor_train, config.actor_infer))
    return config.log_prob_diff_warning or (by_dtype["bf16"] if keeps_kv else rounding)


def covariance_choice(config: AlgorithmConfig) -> CovarianceChoice | None:
    """Return the choice of tokens that the policy loss singles out; None: it treats all alike."""
    objective = _objective(config)
    return objective.choice if isinstance(objective, ClippedCovariance | PenalizedCovariance) else None


def moment_choice(config: AlgorithmConfig) -> SecondMomentChoice | None:
    """Return the choice of tokens that a pass before each update makes; None: there is no such pass."""
    objective = _objective(config)
    return objective.choice if isinstance(objective, SecondMomentBound) else None


def _objective(config: AlgorithmConfig) -> Objective:
    form = config.policy_form
    if form.is_user_defined:
        return UserObjective(form.name, config.pg_args)
    build = cast(Callable[..., Objective], resolve(form.objective))
    return build(*config.policy_keys(form).values())


def _correction(config: AlgorithmConfig) -> TrainInferCorrection | None:
    keys = config.train_infer_correction
    weight, weighs = keys.is_weight, weighs_importance(config)
    filters = tuple(
        MismatchFilter(f.agg_type, f.ratio_enabled, f.ratio_low, f.ratio_high, f.diff_enabled, f.diff_low, f.diff_high)
        for f in keys.filters
        if f.enabled
    )
    if not weighs and not filters:
        return None
    is_weight = ImportanceWeight(weight.weight_type, weight.upper_bound) if weighs else None
    return TrainInferCorrection(is_weight, filters)


def value_loss(config: AlgorithmConfig) -> ValueLoss:
    return ValueLoss(config.value_clip)


def sampling_params(
    keys: GeneratingArgs, response_length: int, stop_token_ids: Sequence[int] = (), greedy: bool = False
) -> SamplingParams:
    """The sampling of a role, without a seed: each request gets its own. `response_length` is the room for an answer,
    of which max_new_tokens may ask for less."""
    return SamplingParams(
        max_new_tokens=min(response_length, keys.max_new_tokens or response_length),
        temperature=0.0 if greedy else keys.temperature,
        top_p=keys.top_p,
        top_k=keys.top_k,
        min_new_tokens=keys.min_new_tokens,
        stop_strings=tuple(keys.stop_strings),
        stop_token_ids=(*keys.stop_token_ids, *stop_token_ids),
        ignore_eos=keys.ignore_eos,
        include_stop_string=keys.include_stop_str_in_output is not False,
        repetition_penalty=keys.repetition_penalty,
    )
