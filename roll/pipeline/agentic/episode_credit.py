"""Credit of episodes: of whole ones, or of their turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roll.algorithms.credit import CreditSettings
from roll.algorithms.episodes import episode_advantages, turn_advantages
from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.jobs import TurnValues
from roll.envs.config import PROXY
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.settings import episode_settings
from roll.rl.step_credit import StepCredit
from roll.types.batch import RowMeta


class EpisodeCredit(StepCredit):
    def __init__(self, config: AgenticConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self._episodes = episode_settings(config)
        self._mode = config.loss_agg_mode
        self._programs = [tag for tag, env in config.custom_envs.items() if env.env_manager_cls == PROXY]

    def row_values(self, meta: RowMeta) -> tuple[np.ndarray, TurnValues | None, dict[str, float]]:
        if not self._episodes.is_per_turn:
            values, metrics = episode_advantages(meta, self._episodes)
            return values, None, metrics
        turns, metrics = turn_advantages(meta, self._episodes)
        assert meta.num_turns is not None
        return np.zeros(len(meta), np.float32), TurnValues(meta.num_turns, turns), metrics

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        """Those that make up for attempts that are cut into several rows where a program rewrites its history."""
        weights, metrics = super().row_weights(meta)
        is_cut = np.isin(meta.domains, self._programs)
        if not is_cut.any() or self._mode == "token-mean":
            return weights, metrics
        shares = shared_weights(meta, is_cut, self._mode)
        return shares if weights is None else weights * shares, metrics

    def token_settings(self, step: int) -> CreditSettings:
        """Estimators that work by turn have discounted already."""
        chosen = super().token_settings(step)
        return replace(chosen, gamma=1.0) if self._episodes.is_per_turn else chosen


def shared_weights(meta: RowMeta, is_cut: np.ndarray, mode: str) -> np.ndarray:
    """The loss weight of every row with which an attempt that was cut into rows has the policy loss that it would have
    in one: of the rows of `is_cut` (bool [R]) those of an attempt share its weight by how many tokens they train, where
    the mode takes the mean of a row. Any other row stands for itself. Row counts are the step's. float32 [R].

    Example (seq-mean-token-mean): an attempt of 3 + 1 tokens in two rows and one of 4 in one: 1.125, .375 and 1.5,
    which sum to the three rows that the loss is divided by, and are 3/4 : 1/4 : 1.
    """
    lengths = meta.response_lengths.astype(np.float64)
    present = lengths > 0
    _, attempts = np.unique(meta.trajectory_ids, return_inverse=True)
    totals = np.bincount(attempts, lengths)[attempts]
    shares = np.where(is_cut & present, lengths / np.maximum(totals, 1.0), 1.0)
    scale = present.sum() / max(shares[present].sum(), 1.0)
    return (scale * (shares if mode == "seq-mean-token-mean" else np.ones_like(shares))).astype(np.float32)
