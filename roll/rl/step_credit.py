"""The group part of credit, on the driver and from metadata: what each row of a step earned."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from roll.algorithms.advantage import group_advantages
from roll.algorithms.credit import CreditSettings, RowCredit, TurnValues
from roll.algorithms.normalize import RunningMoments
from roll.algorithms.policy_loss import PolicyLoss
from roll.algorithms.token_baselines import TokenGroups
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.jobs import TrainJob
from roll.distributed.executor.step_rows import StepSamples
from roll.rl import settings
from roll.types.batch import RowMeta


class StepCredit:
    """Computes the credit of a step's rows, and keeps what the run carries from step to step: the KL coefficient, and
    running moments of rewards. A pipeline whose rows get rewards or loss weights in another way subclasses it."""

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan):
        self.config, self.plan = config, plan
        self.temperature = config.actor_infer.generating_args.temperature or 1.0
        self.policy_loss = self.make_policy_loss()
        self.value_loss = settings.value_loss(config)
        self.advantages = settings.advantage_settings(config)
        self.kl_controller = settings.kl_controller(config)
        self.running_moments: dict[str, RunningMoments] = {}  # of the rewards, by domain

    def make_policy_loss(self) -> PolicyLoss:
        return settings.policy_loss(self.config, self.plan)

    def assign(self, samples: StepSamples, step: int) -> tuple[RowCredit, dict[str, float]]:
        meta = samples.meta
        row_values, turn_values, metrics = self.row_values(meta)
        if self.config.is_pure_opd:
            row_values, turn_values = np.zeros(len(meta)), None
        weights, weight_metrics = self.row_weights(meta)
        taught = settings.teacher_weights(self.config, meta.domains)
        weighs_tokens = self.plan.old_log_probs.halves
        groups = TokenGroups.of_rows(meta.group_ids, meta.response_lengths) if weighs_tokens else None
        credit = RowCredit(self.token_settings(step), row_values, weights, turn_values, taught, groups)
        return credit, metrics | weight_metrics

    def token_settings(self, step: int) -> CreditSettings:
        """How the workers spread the rows' values over their tokens."""
        return replace(
            settings.credit_settings(self.config, self.kl_controller.coef, step),
            old_is_rollout=self.plan.old_log_probs.source == "rollout",
        )

    def row_values(self, meta: RowMeta) -> tuple[np.ndarray, TurnValues | None, dict[str, float]]:
        """Compute what each row, or each of its turns, earned compared with the others; and metrics."""
        if "running" in self.advantages.norms:
            self._update_running_moments(meta)
        values, metrics = group_advantages(
            meta.rewards,
            meta.group_ids,
            self.advantages,
            meta.domains,
            self.running_moments,
            meta.response_lengths,
            meta.greedy_rewards,
            meta.reward_parts,
        )
        return values, None, metrics

    def _update_running_moments(self, meta: RowMeta) -> None:
        for domain in np.unique(meta.domains):
            moments = self.running_moments.get(str(domain), RunningMoments())
            self.running_moments[str(domain)] = moments.update(meta.rewards[meta.domains == domain])

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        """Weights of the rows in the loss, 0 for rows that are left out; None: all alike."""
        return None, {}

    def actor_job(self, samples: StepSamples, credit: RowCredit) -> TrainJob:
        epochs = self.plan.actor_train.epochs
        idle = settings.zero_gradient_rows(self.config)
        choices = settings.covariance_choice(self.config), settings.moment_choice(self.config)
        return TrainJob(self.policy_loss, self.temperature, samples.policy_updates, epochs, credit, idle, *choices)

    def critic_job(self, samples: StepSamples, credit: RowCredit) -> TrainJob:
        assert self.plan.critic is not None
        return TrainJob(self.value_loss, self.temperature, samples.critic_updates, self.plan.critic.epochs, credit)

    def record_kl(self, metrics: Mapping[str, float], num_rows: int) -> dict[str, float]:
        """Lets the controller see the KL that the policy's training has measured; gives what the coefficient is now."""
        if "kl_mean" not in metrics or not self.config.add_token_level_kl:
            return {}
        self.kl_controller = self.kl_controller.update(metrics["kl_mean"], num_rows)
        return {"kl_coef": self.kl_controller.coef}

    def state(self) -> dict[str, Any]:
        return {
            "kl_coef": self.kl_controller.coef,
            "running_moments": {domain: asdict(moments) for domain, moments in self.running_moments.items()},
        }

    def load(self, state: Mapping[str, Any], changed_keys: frozenset[str]) -> None:
        """`changed_keys`: settings that are not the checkpoint's."""
        if "init_kl_coef" not in changed_keys:
            self.kl_controller = replace(self.kl_controller, coef=float(state["kl_coef"]))
        self.running_moments = {domain: RunningMoments(**saved) for domain, saved in state["running_moments"].items()}
