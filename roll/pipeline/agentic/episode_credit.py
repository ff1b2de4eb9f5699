"""Credit of episodes: of whole ones, or of their turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roll.algorithms.credit import CreditSettings
from roll.algorithms.episodes import episode_advantages, turn_advantages
from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.jobs import TurnValues
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.settings import episode_settings
from roll.pipeline.step_credit import StepCredit
from roll.types.batch import RowMeta


class EpisodeCredit(StepCredit):
    def __init__(self, config: AgenticConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self._episodes = episode_settings(config)

    def row_values(self, meta: RowMeta) -> tuple[np.ndarray, TurnValues | None, dict[str, float]]:
        if not self._episodes.is_per_turn:
            values, metrics = episode_advantages(meta, self._episodes)
            return values, None, metrics
        turns, metrics = turn_advantages(meta, self._episodes)
        assert meta.num_turns is not None
        return np.zeros(len(meta), np.float32), TurnValues(meta.num_turns, turns), metrics

    def token_settings(self, step: int) -> CreditSettings:
        """Estimators that work by turn have discounted already."""
        chosen = super().token_settings(step)
        return replace(chosen, gamma=1.0) if self._episodes.is_per_turn else chosen
