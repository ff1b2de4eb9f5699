"""Facts that follow from the settings: which passes over the rows this run needs, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from roll.configs.plan.engine_limits import narrowing_settings
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import spec_of


@dataclass(frozen=True)
class OldLogProbs:
    """Source of the old log-probs.

    - update: the update's own forward pass (the ratio is 1 by construction)
    - pass: a separate pass before training
    - rollout: the engine that sampled

    `reason` explains the choice.
    """

    source: Literal["update", "pass", "rollout"]
    reason: str
    reports_routes: bool = False  # and which experts tokens go to
    halves: bool = False  # and a further pass at half the temperature


def compares_within_groups(config: AlgorithmConfig) -> bool:
    """True if a reward counts only against others of its group: alone in it, it says nothing."""
    row, mean = config.estimator, config.reward_norms[0]
    if row.per_turn and not row.needs_groups:  # the turns of one episode differ, too
        return False
    return (row.mean if mean == "default" else mean) in ("group", "leave_one_out")


def rollout_log_probs_are_full(config: AlgorithmConfig) -> bool:
    """True if what the engine reports is the log-prob under the whole distribution, as the trainer computes it."""
    worker = config.actor_infer
    return worker.generating_args.temperature > 0 and not narrowing_settings(
        worker.strategy_name, worker.generating_args
    )


def compares_vocabulary(config: AlgorithmConfig) -> bool:
    """True if the reference tells the policy its whole distribution over each token, and the loss compares the two."""
    return config.kl_loss_type == "full" and "use_kl_loss" in config.kl_terms


def needs_ref_log_probs(config: AlgorithmConfig) -> bool:
    """True if something compares log-probs of the sampled tokens with the reference's."""
    return config.needs_reference and (not compares_vocabulary(config) or "add_token_level_kl" in config.kl_terms)


def weighs_importance(config: AlgorithmConfig) -> bool:
    """True if the policy loss is weighted by the ratio of trainer and rollout probabilities. By itself it is where
    answers are older than the weights and nothing else makes up for that."""
    enabled = config.train_infer_correction.is_weight.enabled
    if enabled is not None:
        return enabled
    by_ratio = config.force_disable_old_logprobs_recompute  # the policy ratio itself is to what sampled
    return config.trains_stale and rollout_log_probs_are_full(config) and not by_ratio


def moves_idle_rows(config: AlgorithmConfig) -> Mapping[str, str]:
    """The keys by which rows whose advantages are 0 have a part in the policy's gradient, and how."""
    form, train = config.policy_form, config.actor_train
    terms = {
        "use_kl_loss": "use_kl_loss" in config.kl_terms,
        "entropy_loss_coef": config.entropy_loss_coef > 0,
        form.regularizer: config.policy_keys(form).get(form.regularizer, "none") != "none",
        "actor_train.model_args.moe_aux_loss_coef": train.model_args.moe_aux_loss_coef,
        "actor_train.mtp_training_mode": train.trains_prediction_head,
    }
    reasons = {key: f"{key} adds a term to every row." for key, has_term in terms.items() if has_term}
    if not form.is_zero_without_advantage:
        key = "actor_train.pg_variant" if train.pg_variant else "pg_variant"
        hint = " Its class may say is_zero_without_advantage = True, if that holds." if form.is_user_defined else ""
        reasons[key] = f"{key}: {form.name} may use rows whose advantages are 0.{hint}"
    return reasons


def old_log_probs(config: AlgorithmConfig, updates_per_step: int) -> OldLogProbs:
    """The source of old log-probs for this many updates per step. A correction compares them with the rollout's, and
    the update's own serve as well for that as those of a pass under the same weights."""
    halves = config.estimator.weighs_tokens and not config.is_pure_opd
    return replace(_source(config, updates_per_step), halves=halves)


def _source(config: AlgorithmConfig, updates_per_step: int) -> OldLogProbs:
    if config.actor_train.router_replay.tells:
        return OldLogProbs(
            "pass", "router_replay R2 trains with the experts that this pass chooses", reports_routes=True
        )
    if config.enable_old_logprobs_recompute:
        return OldLogProbs("pass", "enable_old_logprobs_recompute is on")
    needed = _why_old_log_probs_are_needed(config, updates_per_step)
    is_old = config.trains_stale or config.actor_train.model_update_frequency > 1
    stale = "responses may be older than the weights" if is_old else None
    corrects = weighs_importance(config) or any(item.enabled for item in config.train_infer_correction.filters)
    takes_rollout = config.force_disable_old_logprobs_recompute and rollout_log_probs_are_full(config)
    if takes_rollout and not corrects and (why := needed or stale):
        return OldLogProbs("rollout", f"{why}, and force_disable_old_logprobs_recompute is on")
    return OldLogProbs("update", "a step has one update") if needed is None else OldLogProbs("pass", needed)


def _why_old_log_probs_are_needed(config: AlgorithmConfig, updates_per_step: int) -> str | None:
    if "add_token_level_kl" in config.kl_terms:
        return "the KL in the reward needs them before training"
    if config.distils:
        return "advantages compare the teacher's log-probs with them"
    if config.estimator.weighs_tokens:
        return f"adv_estimator {config.adv_estimator} weighs tokens by them"
    if config.policy_form.needs_old_log_probs:
        return f"pg_variant {config.policy_form.name} chooses tokens of a whole update by them"
    if updates_per_step > 1:
        return f"a step has {updates_per_step} updates"
    return None


# LoRA adapters that are sent to engines by themselves, beside weights that stay.


def sent_adapter_rank(config: AlgorithmConfig) -> int | None:
    """None: engines get whole weights, adapters merged into them. Merged ones would round otherwise than the trainer's,
    so `exact_log_probs` sends them apart."""
    return config.actor_train.model_args.lora_rank if sent_adapter_switch(config) else None


def sent_adapter_switch(config: AlgorithmConfig) -> str:
    """Return the YAML path of what has adapters sent by themselves; "" if they are merged."""
    is_exact = config.exact_log_probs and config.actor_train.model_args.has_lora
    return lora_sync_key("actor_infer", config.actor_infer) or "exact_log_probs" * is_exact


def lora_sync_key(role: str, worker: WorkerConfig) -> str:
    """Return the YAML path of the key by which an engine takes adapters, if it is on; "" otherwise."""
    sync = spec_of(worker.strategy_name).lora_sync
    is_on = sync is not None and worker.strategy_config.get(sync.key)
    return f"{role}.strategy_args.strategy_config.{sync.key}" if sync and is_on else ""
