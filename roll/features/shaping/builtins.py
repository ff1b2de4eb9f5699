"""Operators between rollout and training that are there by name."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from roll.algorithms.normalize import RunningMoments, divide_by_std, moments_by_key
from roll.configs.sections.operators import MeanFilterArgs, RewardShapingArgs, StdFilterArgs
from roll.distributed.scheduler.filters import make_filter
from roll.errors import AlgorithmError
from roll.types.rollout import Trajectory, TrajectoryGroup
from roll.utils.text import show

# Groups with other rewards, for operators and for code of one's own.

SAMPLED = "sampled_reward"


def with_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> TrajectoryGroup:
    """The group with these rewards of its attempts, in their order, on all rows of each. Failed ones stay without. The
    reward that an attempt had at first is told beside it, as `sampled_reward`, to readers of rollouts."""
    if any(row.side for row in group.trajectories):
        raise AlgorithmError("rewards of episodes with several sides (custom_envs.TAG.sides) cannot be changed as one")
    new = {attempt.index: float(reward) for attempt, reward in zip(group.attempts, rewards, strict=True)}
    rows = [
        row
        if row.failure is not None
        else replace(row, reward=new[row.index], extra={SAMPLED: row.reward, **row.extra})
        for row in group.trajectories
    ]
    return replace(group, trajectories=tuple(rows))


logger = logging.getLogger(__name__)

Groups = Sequence[TrajectoryGroup]


def mean_filter(args: MeanFilterArgs) -> Callable[[Groups], Groups]:
    return _filter("mean_filter", args.model_dump(exclude_none=True))


def std_filter(args: StdFilterArgs) -> Callable[[Groups], Groups]:
    return _filter("std_filter", args.model_dump())


def _filter(kind: str, args: Mapping[str, float]) -> Callable[[Groups], Groups]:
    """Build the filter of query_filter_config as an operator."""
    keep = make_filter(kind, args)
    return lambda groups: [group for group in groups if keep(group)]


class RewardShaping:
    """r becomes r op (weight x stat), of attempts that did not fail. What the run has seen is its state."""

    def __init__(self, args: RewardShapingArgs):
        self._args = args
        self._moments: dict[str, RunningMoments] = {}  # of the stat, by domain

    def __call__(self, groups: Groups) -> Groups:
        if not groups:
            return groups
        attempts = [(group, attempt) for group in groups for attempt in group.attempts]
        stats = np.concatenate([self._stats(group) for group in groups])
        rewards = np.array([attempt.reward for _, attempt in attempts], np.float64)
        shaped = self._shaped(rewards, self._args.weight * self._scaled(stats, groups))
        self._check(shaped, attempts)
        ends = np.cumsum([len(group.attempts) for group in groups])
        parts = np.split(shaped, ends[:-1])
        return [with_rewards(group, part.tolist()) for group, part in zip(groups, parts, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        domains = {domain: asdict(moments) for domain, moments in self._moments.items()}
        return {"stat": self._args.stat, "domains": domains}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moments of another stat say nothing about this one."""
        if state.get("stat") != self._args.stat:
            logger.warning(
                "experience_operators: reward_shaping starts anew: the checkpoint has no moments of %s", self._args.stat
            )
            return
        self._moments = {domain: RunningMoments(**saved) for domain, saved in state["domains"].items()}

    def _stats(self, group: TrajectoryGroup) -> np.ndarray:
        """The statistic of each attempt; NaN for failed ones."""
        name = self._args.stat
        if name == "reward":
            return group.rewards
        if name == "response_length":
            return np.where(np.isnan(group.rewards), np.nan, group.response_lengths)
        return np.array([self._metric(group, attempt) for attempt in group.attempts], np.float64)

    def _metric(self, group: TrajectoryGroup, attempt: Trajectory) -> float:
        """Return a metric of an attempt; it stands on one of the attempt's rows."""
        if attempt.failure is not None:
            return float("nan")
        name = self._args.stat
        stats: dict[str, float] = {}
        for row in group.trajectories:
            stats.update(row.metrics if row.index == attempt.index else {})
        if name not in stats:
            raise AlgorithmError(
                f"experience_operators: reward_shaping: an attempt at {group.task.task_id} reports no {show(name)}; it "
                f"has reward, response_length, {', '.join(stats) or 'and nothing else'}. Correct args.stat"
            )
        return float(stats[name])

    def _scaled(self, stats: np.ndarray, groups: Groups) -> np.ndarray:
        sizes = [len(group.attempts) for group in groups]
        if self._args.scale == "group":
            moments = moments_by_key(stats, np.repeat(np.arange(len(groups)), sizes))
            return divide_by_std(stats - moments.mean, moments.std)
        if self._args.scale == "none":
            return stats
        domains, scaled = np.repeat([group.task.domain for group in groups], sizes), stats.copy()
        for domain in np.unique(domains):
            of_domain = domains == domain
            moments = self._moments.get(str(domain), RunningMoments()).update(stats[of_domain])
            self._moments[str(domain)] = moments
            scaled[of_domain] = divide_by_std(stats[of_domain] - moments.mean, moments.std)
        return scaled

    def _shaped(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):  # looked at below
            match self._args.op:
                case "add":
                    return rewards + values
                case "subtract":
                    return rewards - values
                case "multiply":
                    return rewards * values
                case "divide":
                    return rewards / values
                case "replace":
                    return values

    def _check(self, shaped: np.ndarray, attempts: Sequence[tuple[TrajectoryGroup, Trajectory]]) -> None:
        for value, (group, attempt) in zip(shaped, attempts, strict=True):
            if attempt.failure is None and not np.isfinite(value):
                raise AlgorithmError(
                    f"experience_operators: reward_shaping: {self._args.op} by {self._args.stat} makes the reward "
                    f"{attempt.reward:g} of an attempt at {group.task.task_id} {value:g}. Choose another op, or a scale"
                )
