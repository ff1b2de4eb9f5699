"""Validation metrics from groups of answers."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import comb

import numpy as np

from roll.configs.base import SOLVED
from roll.types.rollout import Generate, Rollouter, Task, Trajectory, TrajectoryGroup


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k answers is right, from `num_samples` of which `num_solved` are: 1 -
    C(n - c, k) / C(n, k), Chen et al. 2021 (arXiv:2107.03374), equation 1. NaN for fewer than k samples."""
    if num_samples < k:
        return math.nan
    return 1.0 - comb(num_samples - num_solved, k) / comb(num_samples, k)


def validation_metrics(
    groups: Sequence[TrajectoryGroup], name: str = "", pass_at: Sequence[int] = ()
) -> dict[str, float]:
    """`val/reward_mean`, the same per tag where there are several, pass@k for k = 2, 4, 8 ... up to the smallest
    group's size, or for those of `pass_at`, the mean response length, and the fraction of failed attempts, which count
    as unsolved with reward 0.

    pass@k is the mean over the groups with k attempts or more; `val/short_groups_fraction` says how many have fewer
    than the greatest k. `name`: of an evaluation set, whose metrics are `val/<name>/reward_mean` and so on."""
    if not groups:
        return {}
    metrics = _metrics(groups, pass_at)
    return metrics if not name else {f"val/{name}/{key.removeprefix('val/')}": metrics[key] for key in metrics}


def mean_of_sets(rewards: Mapping[str, float]) -> dict[str, float]:
    """`val/reward_mean` where there are evaluation sets alone: each counts alike, however large it is."""
    return {"val/reward_mean": float(np.mean(list(rewards.values())))} if rewards else {}


def _metrics(groups: Sequence[TrajectoryGroup], pass_at: Sequence[int]) -> dict[str, float]:
    by_tag: dict[str, list[TrajectoryGroup]] = defaultdict(list)
    for group in groups:
        by_tag[str(group.task.payload.get("tag", group.task.domain))].append(group)
    attempts = [attempt for group in groups for attempt in group.attempts]
    metrics = {
        "val/reward_mean": _mean_reward(groups),
        "val/response_length_mean": float(np.concatenate([group.response_lengths for group in groups]).mean()),
        "val/failed_fraction": float(np.mean([attempt.failure is not None for attempt in attempts])),
    }
    if len(by_tag) > 1:
        metrics |= {f"val/reward_mean/{tag}": _mean_reward(of_tag) for tag, of_tag in sorted(by_tag.items())}
    smallest = min(len(group.attempts) for group in groups)
    if pass_at and smallest < max(pass_at):
        short = [len(group.attempts) < max(pass_at) for group in groups]
        metrics["val/short_groups_fraction"] = float(np.mean(short))
    for k in pass_at or _powers_of_two(smallest):
        metrics |= _pass(f"val/pass_at_{k}", groups, k)
        if len(by_tag) > 1:
            for tag, of_tag in sorted(by_tag.items()):
                metrics |= _pass(f"val/pass_at_{k}/{tag}", of_tag, k)
    return metrics


def _mean_reward(groups: Sequence[TrajectoryGroup]) -> float:
    rewards = [side.rewards for group in groups for side in group.by_side]
    return float(np.nan_to_num(np.concatenate(rewards), nan=0.0).mean())


def _pass(name: str, groups: Sequence[TrajectoryGroup], k: int) -> dict[str, float]:
    """Mean pass@k over the groups with at least k attempts; {} without any."""
    counts = [(len(group.attempts), sum(_is_solved(attempt) for attempt in group.attempts)) for group in groups]
    chances = [pass_at_k(total, solved, k) for total, solved in counts if total >= k]
    return {name: float(np.mean(chances))} if chances else {}


def _is_solved(attempt: Trajectory) -> bool:
    success = attempt.metrics.get("success")
    return attempt.reward >= SOLVED if success is None else success > 0


def _powers_of_two(limit: int) -> list[int]:
    """Example: 8 -> [2, 4, 8]; 6 -> [2, 4]; 1 -> []."""
    return [2**i for i in range(1, limit.bit_length()) if 2**i <= limit]


# The validation of a run that samples: all its sets, answered at once and measured apart.


@dataclass(frozen=True)
class ValidationSet:
    """Tasks with the way in which they are answered. The set that has no `name` is the run's main one."""

    name: str
    tasks: Sequence[Task]
    rollouter: Rollouter
    pass_at: Sequence[int] = ()


class Validation:
    """All sets of a run. Seeds do not depend on the step: changes are the model's."""

    def __init__(self, sets: Sequence[ValidationSet], most_at_once: int):
        """`most_at_once`: groups in flight, over all sets."""
        self._sets = tuple(sets)
        self._most_at_once = most_at_once

    async def answer(self, generate: Generate) -> list[TrajectoryGroup]:
        room = asyncio.Semaphore(self._most_at_once)

        async def answered(rollouter: Rollouter, index: int, task: Task) -> TrajectoryGroup:
            async with room:
                return await rollouter.run_group(task, index, 0, generate)

        return await asyncio.gather(
            *(answered(one.rollouter, index, task) for one in self._sets for index, task in enumerate(one.tasks))
        )

    def by_set(self, groups: Sequence[TrajectoryGroup]) -> dict[str, list[TrajectoryGroup]]:
        rest = iter(groups)
        return {one.name: list(islice(rest, len(one.tasks))) for one in self._sets}

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        answered = self.by_set(groups)
        for one in self._sets:
            metrics |= validation_metrics(answered[one.name], one.name, one.pass_at)
        if "" in answered:
            return metrics
        return metrics | mean_of_sets({name: metrics[f"val/{name}/reward_mean"] for name in answered})
