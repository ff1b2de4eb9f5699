"""What a step's rollouts were like: rewards, lengths, how they ended, how old the policy was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from roll.types.batch import FINISH_REASONS, SampleBatch
from roll.types.rollout import TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup], batch: SampleBatch, step: int) -> dict[str, float]:
    """Metrics under `rollout/`. Rewards and response lengths are over attempts that did not fail, however many rows an
    attempt has; `staleness` counts the weight updates between the oldest version that sampled a token and the one this
    step trains."""
    lengths = np.concatenate([group.response_lengths[~np.isnan(group.rewards)] for group in groups])
    per_row = np.array([t.response_mask.sum() for g in groups for t in g.trajectories])
    sampled = batch.policy_versions[batch.policy_versions >= 0]
    metrics = {
        "rollout/failed_fraction": float(np.mean([t.failure is not None for g in groups for t in g.attempts])),
        "rollout/truncated_fraction": _share(batch, "length"),
        "rollout/prompt_length_mean": float((batch.lengths - per_row).mean()),
        "rollout/num_tokens": float(batch.num_tokens),
    }
    if len(lengths):
        metrics["rollout/response_length_mean"] = float(lengths.mean())
        metrics["rollout/response_length_max"] = float(lengths.max())
    if len(sampled):
        metrics["rollout/staleness_max"] = float(step - sampled.min())
    domains = sorted({group.task.domain for group in groups})
    for domain in domains if len(domains) > 1 else ():
        rewards = np.concatenate([group.rewards for group in groups if group.task.domain == domain])
        if not np.isnan(rewards).all():
            metrics[f"rollout/reward_mean/{domain}"] = float(np.nanmean(rewards))
    return metrics | _means_of_user_metrics(groups)


def _share(batch: SampleBatch, reason: str) -> float:
    return float((batch.finish_reasons == FINISH_REASONS.index(reason)).mean())


def _means_of_user_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means of what rewards and environments report of each trajectory."""
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                values[name].append(value)
    return {f"rollout/{name}_mean": float(np.mean(v)) for name, v in sorted(values.items())}
