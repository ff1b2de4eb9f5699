"""Validation metrics from groups of answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import comb

import numpy as np

from roll.types.rollout import TrajectoryGroup

SOLVED = 1.0
"""An answer with at least this reward counts as solved in pass@k."""


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k answers is right, from `num_samples` of which `num_solved` are.

    1 - C(n - c, k) / C(n, k), Chen et al. 2021 (arXiv:2107.03374), equation 1.

    Example: pass_at_k(4, 1, 2) = 1 - C(3, 2) / C(4, 2) = 0.5.
    """
    return 1.0 - comb(num_samples - num_solved, k) / comb(num_samples, k)


def validation_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """`val/reward_mean`, the same per tag where there are several, pass@k for k = 2, 4, 8 ... up to the group size, the
    mean response length, and the fraction of failed attempts. A failed attempt counts as unsolved with reward 0 here:
    validation must not look better because scoring broke, and `val/failed_fraction` shows it."""
    if not groups:
        return {}
    rewards = [np.nan_to_num(group.rewards, nan=0.0) for group in groups]
    trajectories = [t for group in groups for t in group.trajectories]
    by_tag: dict[str, list[np.ndarray]] = defaultdict(list)
    for group, values in zip(groups, rewards, strict=True):
        by_tag[str(group.task.payload.get("tag", group.task.domain))].append(values)
    metrics = {
        "val/reward_mean": _mean(rewards),
        "val/response_length_mean": float(np.mean([t.response_mask.sum() for t in trajectories])),
        "val/failed_fraction": float(np.mean([t.failure is not None for t in trajectories])),
    }
    if len(by_tag) > 1:
        metrics |= {f"val/reward_mean/{tag}": _mean(values) for tag, values in sorted(by_tag.items())}
    for k in _powers_of_two(min(len(values) for values in rewards)):
        metrics[f"val/pass_at_{k}"] = _pass(rewards, k)
        if len(by_tag) > 1:
            metrics |= {f"val/pass_at_{k}/{tag}": _pass(values, k) for tag, values in sorted(by_tag.items())}
    return metrics


def _mean(rewards: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(rewards).mean())


def _pass(rewards: Sequence[np.ndarray], k: int) -> float:
    return float(np.mean([pass_at_k(len(values), int((values >= SOLVED).sum()), k) for values in rewards]))


def _powers_of_two(limit: int) -> list[int]:
    """Example: 8 -> [2, 4, 8]; 6 -> [2, 4]; 1 -> []."""
    return [2**i for i in range(1, limit.bit_length()) if 2**i <= limit]
