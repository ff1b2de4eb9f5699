"""What a step's rollouts were like: rewards, lengths, how they ended, how old the policy was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from roll.distributed.scheduler.length_bias import length_bias
from roll.distributed.scheduler.rollout_core import GroupsLeft, StepGroups
from roll.types.rollout import TrajectoryGroup


def rollout_metrics(taken: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
    """Metrics under `rollout/` of all sampled groups; `trained` are those that the step learns from. Rewards and
    response lengths are over attempts that did not fail, however many rows an attempt has; `staleness` counts the steps
    between the version that sampled a token and the one this step trains."""
    groups, left = taken.sampled, taken.left or GroupsLeft()
    rows = [t for group in groups for t in group.trajectories]
    lengths = np.concatenate([group.response_lengths[~np.isnan(group.rewards)] for group in groups])
    num_tokens = np.array([t.facts.num_tokens for t in rows])
    num_given = num_tokens - [t.facts.num_sampled for t in rows]
    sampled = [t.facts for t in rows if t.facts.num_sampled and t.facts.oldest_version >= 0]
    metrics = {
        "rollout/failed_fraction": float(np.mean([t.failure is not None for g in groups for t in g.attempts])),
        "rollout/truncated_fraction": float(np.mean([t.finish_reason == "length" for t in rows])),
        "rollout/prompt_length_mean": float(num_given.mean()),
        "rollout/num_tokens": float(num_tokens.sum()),
    }
    if len(lengths):
        metrics["rollout/response_length_mean"] = float(lengths.mean())
        metrics["rollout/response_length_max"] = float(lengths.max())
    if (bias := length_bias([*groups, *left.results], trained, left.cut)) is not None:
        metrics["rollout/length_bias"] = bias
    if sampled:
        mean = np.average([facts.mean_version for facts in sampled], weights=[facts.num_sampled for facts in sampled])
        metrics["rollout/staleness_mean"] = float(step - mean)
        metrics["rollout/staleness_max"] = float(step - min(facts.oldest_version for facts in sampled))
    greedy = np.array([np.nan if group.greedy_reward is None else group.greedy_reward for group in groups])
    if not np.isnan(greedy).all():
        metrics["rollout/greedy_reward_mean"] = float(np.nanmean(greedy))
    metrics |= reward_means("rollout/reward_mean", groups, groups)
    if taken.left is not None:
        counts = ("running", "finished", "cancelled", "deferred")
        metrics |= {f"rollout/{name}_groups": float(getattr(left, name)) for name in counts}
    return metrics | _means_of_user_metrics(groups)


def reward_means(name: str, groups: Sequence[TrajectoryGroup], sampled: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The mean reward of these groups in each domain, where several were sampled."""
    rewards: dict[str, list[np.ndarray]] = defaultdict(list)
    for group in groups:
        rewards[group.task.domain].append(group.rewards[~np.isnan(group.rewards)])
    joined = {domain: np.concatenate(found) for domain, found in sorted(rewards.items())}
    several = len({group.task.domain for group in sampled}) > 1
    return {f"{name}/{domain}": float(found.mean()) for domain, found in joined.items() if several and len(found)}


def _means_of_user_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means of what rewards and environments report of each trajectory."""
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                values[name].append(value)
    return {f"rollout/{name}_mean": float(np.mean(v)) for name, v in sorted(values.items())}
