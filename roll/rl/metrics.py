"""Steps in which a filter drops groups: how many updates they make, and what they say of all that was sampled."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np

from roll.algorithms.advantage import reward_metrics
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError
from roll.rl.rollout_metrics import reward_means
from roll.types.rollout import TrajectoryGroup

logger = logging.getLogger(__name__)

FEW = 0.25  # of a step's groups; below this, an update follows a handful of prompts


def updates_of(planned: int, num_kept: int, num_groups: int) -> int:
    """The updates of an epoch over `num_kept` of `num_groups` groups: in proportion, so that an update has as many
    samples as it would have without the filter, and at least one.

    Example: 4 planned updates over 16 groups: 16 and 13 kept groups make 4, 8 make 2, 1 makes 1.
    """
    return max(1, math.ceil(planned * num_kept / num_groups))


def of_empty(groups: StepGroups, on_empty: str, num_groups: int, step: int) -> StepGroups:
    """The groups to train on, in place of `kept`, and the others. If the filter kept none, `on_empty` decides; trained
    on are then `num_groups`, the first in the data. Raises AlgorithmError where the run is to end."""
    if groups.kept or on_empty == "skip_step":
        return groups
    if on_empty == "fail":
        raise AlgorithmError(
            f"step {step + 1}: the filter dropped all {len(groups.dropped)} groups, and on_empty is fail. Look at the "
            "filter's thresholds and at is_use_additional_prompts, or let on_empty be skip_step or train_all."
        )
    ordered = sorted(groups.dropped, key=lambda group: group.group_id)
    return StepGroups(ordered[:num_groups], ordered[num_groups:])


def filter_metrics(groups: StepGroups, trained: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """What was sampled, how much of it was kept, and how much is trained on. Metrics under `rollout/`."""
    sampled = groups.sampled
    rewards = np.concatenate([group.rewards for group in sampled])
    ids = np.repeat(np.arange(len(sampled)), [len(group.rewards) for group in sampled])
    rows = [t for group in trained for t in group.trajectories]
    num_trained = sum(t.failure is None and t.facts.num_sampled > 0 for t in rows)
    metrics = reward_metrics(rewards, ids) | {
        "dropped_groups": float(len(groups.dropped)),
        "kept_groups": float(len(groups.kept)),
        "kept_groups_fraction": len(groups.kept) / len(sampled),
        "trained_rows_fraction": num_trained / sum(len(group.trajectories) for group in sampled),
    }
    if (bias := _mean_length(groups.kept) / (_mean_length(sampled) or 1.0)) > 0:
        metrics["filter_length_bias"] = bias
    by_domain = reward_means("rollout/kept_reward_mean", trained, sampled)
    return {f"rollout/{name}": value for name, value in metrics.items()} | by_domain


def _mean_length(groups: Sequence[TrajectoryGroup]) -> float:
    """Mean response length of the attempts that did not fail; 0 without any."""
    lengths = [n for g in groups for n, t in zip(g.response_lengths, g.attempts, strict=True) if t.failure is None]
    return float(np.mean(lengths)) if lengths else 0.0


def kept_share(groups: StepGroups) -> float:
    """The share of the sampled rows that is kept."""
    rows, sampled = (sum(len(g.trajectories) for g in some) for some in (groups.kept, groups.sampled))
    return rows / sampled


def of_kept(metrics: Mapping[str, float], share: float) -> dict[str, float]:
    """Metrics of credit, which sees the kept rows alone (this share of all), under names that say so."""
    named = {f"kept_{name}" if name in REWARD_METRICS else name: value for name, value in metrics.items()}
    if "trained_rows_fraction" in named:
        named["trained_rows_fraction"] *= share
    return named


REWARD_METRICS = frozenset(reward_metrics(np.zeros(2), np.zeros(2)))


class FewGroupsAlarm:
    """Says it in every step whose groups were all dropped, and once when they begin to be few."""

    def __init__(self) -> None:
        self._is_on = False

    def look(self, groups: StepGroups, num_groups: int, step: int, on_empty: str) -> None:
        kept = len(groups.kept)
        if not kept:
            logger.warning(
                "step %d: the filter dropped all %d groups, so the step %s (on_empty: %s). Look at "
                "rollout/reward_mean, at the filter's thresholds, and at is_use_additional_prompts.",
                step + 1,
                len(groups.dropped),
                "trains on what was dropped" if on_empty == "train_all" else "makes no update",
                on_empty,
            )
        elif kept < FEW * num_groups and not self._is_on:
            logger.warning(
                "step %d: the filter kept %d groups where %d are planned. Its updates are as large as planned, at the "
                "full learning rate, and there are fewer of them; the last may be small. See rollout/kept_groups, and "
                "is_use_additional_prompts.",
                step + 1,
                kept,
                num_groups,
            )
        self._is_on = bool(kept) and kept < FEW * num_groups
