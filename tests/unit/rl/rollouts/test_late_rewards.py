"""Rewards that are given after the rollout: whose turn it is, what goes where, and what is looked at again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.executor.placement import Claim
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import RewardError
from roll.rl.late_rewards import LateRewards, waits
from roll.types.collate import collate_groups
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from tests.helpers.rollouts import attempt_here

GENERATION = Generation(np.array([7], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")


def group(domain: str, group_id: int, *rewards: float) -> TrajectoryGroup:
    task = Task(f"{domain}-{group_id}", domain, np.array([1, 2], np.int32))
    attempts = (
        Trajectory.from_generation(task.prompt_ids, GENERATION, reward, index=i, response_text="", metrics={"own": 1.0})
        for i, reward in enumerate(rewards)
    )
    return TrajectoryGroup(task, group_id, tuple(attempts))


class Scorer:
    """Rewards every attempt with its group's id; the first attempt of group 9 fails."""

    def __init__(self, log: list[str], name: str):
        self.log, self.name = log, name
        self.claims = (Claim(cast(Any, SimpleNamespace(role=name))),)

    def score(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        self.log.append(f"{self.name} scores {[g.group_id for g in groups]}")
        return [
            TrajectoryGroup(g.task, g.group_id, tuple(self._one(g, attempt_here(t)) for t in g.trajectories))
            for g in groups
        ]

    def _one(self, group: TrajectoryGroup, trajectory: Trajectory) -> Trajectory:
        if group.group_id == 9 and trajectory.index == 0:
            return trajectory.failed("gave nan")
        return trajectory.rewarded(float(group.group_id), {"tokens": 3.0}, {"said": "fine"})


def test_scorers_take_turns_and_each_group_gets_the_reward_of_its_domain() -> None:
    log: list[str] = []

    @contextmanager
    def hold(*claims: Claim) -> Iterator[None]:
        log.append(f"hold {claims[0].occupant.role}")
        yield
        log.append("release")

    model, judge = Scorer(log, "model"), Scorer(log, "judge")
    late = LateRewards({"chat": model, "essay": judge, "safety": model}, hold)
    groups = [
        group("essay", 4, math.nan),
        group("math", 5, 1.0, 0.0),
        group("safety", 9, math.nan, math.nan),
        group("chat", 6, math.nan),
    ]
    assert [waits(g) for g in groups] == [True, False, True, True]
    done = late.complete(groups)
    assert log == ["hold model", "model scores [9, 6]", "release", "hold judge", "judge scores [4]", "release"]
    assert [g.task.domain for g in done] == ["essay", "math", "safety", "chat"]
    assert [g.rewards.tolist() for g in (done[0], done[1], done[3])] == [[4.0], [1.0, 0.0], [6.0]]
    failed, rewarded = done[2].trajectories
    assert (failed.failure, failed.finish_reason) == ("gave nan", "failed") and math.isnan(failed.reward)
    assert (rewarded.reward, rewarded.metrics, rewarded.extra) == (9.0, {"own": 1.0, "tokens": 3.0}, {"said": "fine"})
    assert not any(waits(g) for g in done)


def test_attempts_without_their_rewards_are_not_trained_on_and_may_stop_the_run() -> None:
    with pytest.raises(ValueError, match="has no reward"):
        collate_groups([group("chat", 6, math.nan)])
    broken = group("chat", 1, 1.0, 1.0)
    broken = TrajectoryGroup(broken.task, 1, (broken.trajectories[0].failed("gave nan"), broken.trajectories[1]))
    assert scheduler(SchedulerSettings(RolloutBounds(1), max_failed_fraction=0.5)).rescore(
        StepGroups([broken], []), [broken], 3
    )
    with pytest.raises(RewardError, match=r"step 3: 1 of 2 attempts failed.*\n  1 x gave nan"):
        scheduler(SchedulerSettings(RolloutBounds(1))).rescore(StepGroups([broken], []), [broken], step=3)


def scheduler(settings: SchedulerSettings, keep: Any = None) -> RolloutScheduler:
    nothing: Any = None
    return RolloutScheduler(nothing, nothing, nothing, nothing, settings, keep)


def test_filters_look_again_at_groups_whose_rewards_came_late() -> None:
    looks = scheduler(
        SchedulerSettings(RolloutBounds(4)), lambda g: bool(g.rewards.mean() > 0 or math.isnan(g.rewards.mean()))
    )
    groups = StepGroups([group("chat", 1, math.nan), group("math", 2, 1.0), group("chat", 3, math.nan)], [])
    groups = StepGroups(groups.groups, [group("math", 0, 0.0)])
    completed = [group("chat", 1, 0.0), groups.groups[1], group("chat", 3, 1.0), groups.dropped[0]]
    found = looks.rescore(groups, completed, step=0)
    assert [[g.group_id for g in some] for some in (found.groups, found.dropped)] == [[2, 3], [0, 1]]
