"""Credit of rows that weigh in the loss by what is known of them: difficulty, length, format."""

from __future__ import annotations

import numpy as np

from roll.algorithms.loss import PolicyLoss
from roll.algorithms.masking import row_weights
from roll.configs.plan.batch_plan import BatchPlan
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.settings import row_weight_settings
from roll.rl.settings import policy_loss
from roll.rl.step_credit import StepCredit
from roll.types.batch import RowMeta


class WeightedCredit(StepCredit):
    config: RLVRConfig

    def __init__(self, config: RLVRConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self._weights = row_weight_settings(config)

    def make_policy_loss(self) -> PolicyLoss:
        return policy_loss(self.config, self.plan, self.config.rl_loss_coef)

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        return (None, {}) if self._weights is None else row_weights(meta, self._weights)
