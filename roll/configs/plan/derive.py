"""Facts that follow from the settings: which roles and which passes this run needs, and why."""

from dataclasses import dataclass
from typing import Literal

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.cluster import WorkerConfig
from roll.configs.strategy import narrowing_settings


@dataclass(frozen=True)
class OldLogProbs:
    """Where old log-probs come from.

    update: the update's own forward pass (its ratio is 1 by construction); pass: a pass of their own before training;
    rollout: the engine that sampled. `reason` says why.
    """

    source: Literal["update", "pass", "rollout"]
    reason: str


def kl_terms(config: AlgorithmConfig) -> tuple[str, ...]:
    """The KL terms in use. A coefficient alone switches nothing on."""
    terms: list[str] = []
    if config.use_kl_loss and config.kl_loss_coef > 0:
        terms.append("use_kl_loss")
    if config.add_token_level_kl and config.init_kl_coef > 0:
        terms.append("add_token_level_kl")
    return tuple(terms)


def needs_reference(config: AlgorithmConfig) -> bool:
    return bool(kl_terms(config)) or config.enable_reference


def needs_critic(config: AlgorithmConfig) -> bool:
    return config.estimator.needs_critic


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


def old_log_probs(config: AlgorithmConfig, updates_per_step: int) -> OldLogProbs:
    """The source of old log-probs for this many updates per step."""
    correction = config.train_infer_correction
    corrects = correction.is_weight.enabled or any(item.enabled for item in correction.filters)
    if config.enable_old_logprobs_recompute:
        return OldLogProbs("pass", "enable_old_logprobs_recompute is on")
    if corrects:
        return OldLogProbs("pass", "train_infer_correction compares them with the rollout's")
    needed = _why_old_log_probs_are_needed(config, updates_per_step)
    if needed is None:
        return OldLogProbs("update", "a step has one update")
    if config.force_disable_old_logprobs_recompute and rollout_log_probs_are_full(config):
        return OldLogProbs("rollout", f"{needed}, and force_disable_old_logprobs_recompute is on")
    return OldLogProbs("pass", needed)


def _why_old_log_probs_are_needed(config: AlgorithmConfig, updates_per_step: int) -> str | None:
    if "add_token_level_kl" in kl_terms(config):
        return "the KL in the reward needs them before training"
    if updates_per_step > 1:
        return f"a step has {updates_per_step} updates"
    return None


def model_roles(config: AlgorithmConfig) -> dict[str, WorkerConfig]:
    """The roles of this run that hold a model, in the order they are shown and started."""
    roles = {"actor_train": config.actor_train, "actor_infer": config.actor_infer}
    if needs_critic(config) and config.critic is not None:
        roles["critic"] = config.critic
    if needs_reference(config) and config.reference is not None:
        roles["reference"] = config.reference
    return roles


def learning_roles(config: AlgorithmConfig) -> dict[str, WorkerConfig]:
    """Those of them that learn."""
    return {role: worker for role, worker in model_roles(config).items() if config.roles[role].learns}
