"""Row values: what each trajectory earned, compared with the others. Works on row metadata, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll.algorithms.normalize import KeyMoments, RunningMoments, clip_fraction, divide_by_std, moments_by_key
from roll.configs.estimators import estimator_of

MeanType = Literal["default", "batch", "group", "leave_one_out", "running"] | None
StdType = Literal["default", "batch", "group", "running"] | None


@dataclass(frozen=True)
class AdvantageSettings:
    """`default` norms are those of the estimator; None is no norm. Dr. GRPO is grpo with norm_std_type None."""

    estimator: str = "grpo"
    norm_mean_type: MeanType = "default"
    norm_std_type: StdType = "default"
    reward_clip: float | None = None
    limits: tuple[float, float] | None = None  # normalised values are cut to this range, before reward_clip

    def __post_init__(self) -> None:
        estimator_of(self.estimator)
        if self.reward_clip is not None and self.reward_clip <= 0:
            raise ValueError(f"reward_clip must be above 0 or null, not {self.reward_clip}")

    def within_limits(self, values: np.ndarray) -> np.ndarray:
        return values if self.limits is None else np.clip(values, *self.limits)

    @property
    def norms(self) -> tuple[MeanType, StdType]:
        """What is subtracted and what divides, `default` resolved."""
        row = estimator_of(self.estimator)
        return (
            row.mean if self.norm_mean_type == "default" else self.norm_mean_type,
            row.std if self.norm_std_type == "default" else self.norm_std_type,
        )


def group_advantages(
    rewards: np.ndarray,
    group_ids: np.ndarray,
    settings: AdvantageSettings,
    domains: np.ndarray | None = None,
    running: Mapping[str, RunningMoments] | None = None,
) -> tuple[np.ndarray, dict[str, float]]:
    """(reward - mean) / std of every row, clipped to +-reward_clip. float32 [R], and metrics.

    - `batch` moments are over all rows, or over those of the row's domain when `domains` are given; deviations are
      sample deviations (n - 1) of the raw rewards.
    - `running` moments are by domain ("" without domains) and include this step if the caller has updated them.
    - A failed attempt (NaN) is left out of every mean and gets 0.
    - A group with equal rewards, or with one attempt that did not fail, gets exactly 0 from a group or leave-one-out
      mean.
    - A deviation of 0 divides nothing.

    Example: rewards [1 0 0 NaN] in one group: grpo [1.155 -.577 -.577 0], rloo [1 -.5 -.5 0], reinforce [1 0 0 0].
    """
    rewards = np.asarray(rewards, np.float64)
    domains = np.full(len(rewards), "") if domains is None else domains
    group = moments_by_key(rewards, group_ids)
    mean_type, std_type = settings.norms
    if mean_type is None:
        values = rewards
    elif mean_type == "leave_one_out":
        # r - mean of the n - 1 others = (r - mean of all n) * n / (n - 1)
        values = (rewards - group.mean) * group.count / np.maximum(group.count - 1, 1)
    else:
        values = rewards - _moments(mean_type, rewards, group, domains, running).mean
    if std_type is not None:
        values = divide_by_std(values, _moments(std_type, rewards, group, domains, running).std)

    values = settings.within_limits(values)
    failed = np.isnan(rewards)
    metrics = reward_metrics(rewards, group_ids)
    if settings.reward_clip is not None:
        metrics["reward_clip_fraction"] = clip_fraction(values[~failed], settings.reward_clip)
        values = np.clip(values, -settings.reward_clip, settings.reward_clip)
    return np.where(failed, 0.0, values).astype(np.float32), metrics


def _moments(
    kind: str, rewards: np.ndarray, group: KeyMoments, domains: np.ndarray, running: Mapping[str, RunningMoments] | None
) -> KeyMoments:
    match kind:
        case "group":
            return group
        case "batch":
            return moments_by_key(rewards, domains)
        case "running":
            names, index = np.unique(domains, return_inverse=True)
            known = [(running or {}).get(str(name), RunningMoments()) for name in names]
            count, mean, std = np.array([(m.count, m.mean, m.std) for m in known], np.float64).reshape(-1, 3).T
            return KeyMoments(count[index].astype(np.int64), mean[index], std[index])
        case _:
            raise ValueError(f"unknown norm {kind!r}; known: batch, group, running, and leave_one_out for the mean")


def reward_metrics(rewards: np.ndarray, group_ids: np.ndarray) -> dict[str, float]:
    """Of the attempts that did not fail (NaN); without any there is nothing to say."""
    group = moments_by_key(rewards, group_ids)
    known = ~np.isnan(rewards)
    rewards, group_ids, stds, counts = rewards[known], group_ids[known], group.std[known], group.count[known]
    if not len(rewards):
        return {}
    _, first = np.unique(group_ids, return_index=True)
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_max": float(rewards.max()),
        "reward_min": float(rewards.min()),
        "reward_std": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
    }
    compared = first[counts[first] > 1]
    if len(compared):
        metrics["group_reward_std_mean"] = float(stds[compared].mean())
        metrics["group_equal_rewards_fraction"] = float((stds[compared] == 0).mean())
    return metrics
