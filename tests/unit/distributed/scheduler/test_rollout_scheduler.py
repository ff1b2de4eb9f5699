"""The scheduler against a fake rollouter with random delays: order, failures, filters, resume."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import RewardError
from roll.types.group_codec import load_groups
from roll.types.rollout import (
    Answered,
    Generate,
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.helpers.rollouts import here


@dataclass
class CountingSource:
    """Tasks 0, 1, 2, ..."""

    position: int = 0

    def next_tasks(self, count: int) -> list[Task]:
        tasks = [Task(str(self.position + i), "d", np.array([1, 2], np.int32)) for i in range(count)]
        self.position += count
        return tasks

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


@dataclass
class DelayedRollouter:
    """Waits a random moment; remembers the policy version under which each group started."""

    version: int = 0
    fail: bool = False
    crash_at: int | None = None
    started: dict[int, int] = field(default_factory=dict)
    hanging: set[int] = field(default_factory=set)
    delays: random.Random = field(default_factory=lambda: random.Random(0))

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        self.started[group_id] = self.version
        await asyncio.sleep(self.delays.random() * 0.003)
        if group_id == self.crash_at:
            raise RuntimeError("the environment server is gone")
        if self.crash_at is not None:
            await self._hang(group_id)
        (generation,) = await generate(GenerationRequest(str(group_id), task.prompt_ids, SamplingParams(1)))
        failure = "division by zero" if self.fail else None
        trajectory = Trajectory.from_generation(
            task.prompt_ids, here(generation), float(task.task_id), index=0, response_text="", failure=failure
        )
        return TrajectoryGroup(task, group_id, (trajectory,))

    async def _hang(self, group_id: int) -> None:
        self.hanging.add(group_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging.discard(group_id)


async def one_token(request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
    await asyncio.sleep(0)
    return [Generation(np.array([7], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")]


@pytest.fixture(scope="module")
def loop() -> Iterator[EventLoopThread]:
    thread = EventLoopThread("scheduler-tests")
    yield thread
    thread.close()


def make(
    loop: EventLoopThread, rollouter: DelayedRollouter, source: CountingSource | None = None, keep=None, **kwargs: Any
) -> RolloutScheduler:
    names = ("num_groups", "ahead", "max_staleness")
    bounds = RolloutBounds(**{name: kwargs.pop(name) for name in names if name in kwargs})
    settings = SchedulerSettings(bounds, **kwargs)
    return RolloutScheduler(loop, rollouter, one_token, source or CountingSource(), settings, keep)


def test_groups_come_in_order_with_tasks_in_data_order(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(), num_groups=5)
    for step in range(3):
        groups = scheduler.collect(step).groups
        assert (
            [g.group_id for g in groups] == [int(g.task.task_id) for g in groups] == list(range(step * 5, step * 5 + 5))
        )
        scheduler.published(step + 1)


def test_state_points_at_the_groups_that_no_step_took(loop: EventLoopThread, tmp_path: Path):
    source = CountingSource()
    scheduler = make(loop, DelayedRollouter(), source, num_groups=4, ahead=3, max_staleness=1)
    scheduler.collect(0)
    scheduler.published(1)
    assert source.position == 11
    state = json.loads(json.dumps(scheduler.save(tmp_path)))
    assert state["data"] == {"position": state["groups"]["place"]} == {"position": 0}
    active = dict(state["groups"]["active"])
    assert len(active) == 7 and state["groups"]["next"] == 11
    later = CountingSource()
    later.load_state_dict(state["data"])
    resumed = make(loop, DelayedRollouter(), later, num_groups=4, ahead=3, max_staleness=1)
    tokens = sum(row.facts.num_sampled for group in load_groups(tmp_path / "rollouts") for row in group.trajectories)
    assert resumed.restore(tmp_path, state["groups"], 1) == tokens
    assert later.position == 11 and dict(resumed.save(tmp_path / "again")["groups"]["active"]) == active
    found = resumed.collect(1).groups
    assert [str(g.group_id) for g in found] == [g.task.task_id for g in found] and {g.group_id for g in found} <= set(
        active
    )


def test_a_crash_in_one_group_ends_collect_and_the_others_and_no_number_is_lost(loop: EventLoopThread, tmp_path: Path):
    rollouter = DelayedRollouter(crash_at=2)
    scheduler = make(loop, rollouter, num_groups=4, ahead=4, max_staleness=1)
    with pytest.raises(RuntimeError, match="environment server is gone"):
        scheduler.collect(0)
    assert not rollouter.hanging
    numbers = scheduler.save(tmp_path)["groups"]
    assert (numbers["place"], numbers["next"], numbers["active"]) == (0, 8, [[n, 0] for n in range(8)])


def test_failures_stop_the_run_and_dropped_groups_are_counted(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(fail=True), num_groups=4, max_failed_fraction=0.5)
    with pytest.raises(RewardError, match=r"4 of 4 attempts failed.*max_failed_fraction(.|\n)*4 x division by zero"):
        scheduler.collect(0)
    scheduler = make(loop, DelayedRollouter(), keep=lambda g: False, num_groups=3, max_replacements=2)
    groups = scheduler.collect(0)
    assert (len(groups.groups), len(groups.dropped), len(groups.sampled)) == (0, 5, 5)
    scheduler = make(loop, DelayedRollouter(fail=True), keep=lambda g: False, num_groups=4)
    with pytest.raises(RewardError, match="4 of 4 attempts failed"):
        scheduler.collect(0)


def test_dropped_groups_are_replaced_by_the_next_tasks(loop: EventLoopThread, tmp_path: Path):
    scheduler = make(
        loop, DelayedRollouter(), keep=lambda g: int(g.task.task_id) % 2 == 0, num_groups=4, max_replacements=4
    )
    groups = scheduler.collect(0)
    assert [g.task.task_id for g in groups.groups] == ["0", "2", "4", "6"]
    assert [g.group_id for g in groups.groups] == [0, 2, 4, 6]
    assert [g.task.task_id for g in groups.dropped] == ["1", "3", "5"]
    scheduler.published(1)
    assert scheduler.save(tmp_path)["groups"]["next"] == 7
