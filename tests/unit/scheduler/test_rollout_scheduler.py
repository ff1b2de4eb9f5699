"""The scheduler against a fake rollouter with random delays: order, staleness bound, failures, filters, resume."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import RewardError
from roll.types.rollout import (
    Generate,
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
)


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
    delays: random.Random = field(default_factory=lambda: random.Random(0))

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        self.started[group_id] = self.version
        await asyncio.sleep(self.delays.random() * 0.003)
        if group_id == self.crash_at:
            raise RuntimeError("the environment server is gone")
        (generation,) = await generate(GenerationRequest(str(group_id), task.prompt_ids, SamplingParams(1)))
        failure = "division by zero" if self.fail else None
        trajectory = Trajectory.from_generation(
            task.prompt_ids, generation, float(task.task_id), index=0, response_text="", failure=failure
        )
        return TrajectoryGroup(task, group_id, (trajectory,))


async def one_token(request: GenerationRequest) -> list[Generation]:
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
    return RolloutScheduler(loop, rollouter, one_token, source or CountingSource(), SchedulerSettings(**kwargs), keep)


def test_groups_come_in_order_with_tasks_in_data_order(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(), num_groups=5)
    for step in range(3):
        groups = scheduler.collect(step).kept
        assert (
            [g.group_id for g in groups] == [int(g.task.task_id) for g in groups] == list(range(step * 5, step * 5 + 5))
        )
        scheduler.resume(step + 1)


@settings(max_examples=25, deadline=None)
@given(num_groups=st.integers(1, 6), ahead=st.integers(0, 9), steps=st.integers(1, 5))
def test_no_group_starts_more_than_the_staleness_bound_early(num_groups: int, ahead: int, steps: int):
    """`ahead` groups mean a staleness of at most ceil(ahead / num_groups): a group of step s starts at version >= s -
    that."""
    thread = EventLoopThread("staleness")
    rollouter = DelayedRollouter()
    scheduler = make(thread, rollouter, num_groups=num_groups, ahead=ahead)
    bound = -(-ahead // num_groups)
    for step in range(steps):
        scheduler.collect(step)
        assert scheduler.num_in_flight <= ahead
        rollouter.version = step + 1
        scheduler.resume(step + 1)
    thread.close()
    for group_id, version in rollouter.started.items():
        assert version >= group_id // num_groups - bound
        assert version <= group_id // num_groups


def test_state_points_before_the_groups_in_flight(loop: EventLoopThread):
    source = CountingSource()
    scheduler = make(loop, DelayedRollouter(), source, num_groups=4, ahead=3)
    scheduler.collect(0)
    scheduler.resume(1)
    assert source.position > 4 and scheduler.state_dict() == {"position": 4}
    later = CountingSource()
    later.load_state_dict({"position": 4})
    resumed = make(loop, DelayedRollouter(), later, num_groups=4, ahead=3)
    resumed.start_at(1)
    assert (
        [g.task.task_id for g in resumed.collect(1).kept]
        == [g.task.task_id for g in scheduler.collect(1).kept]
        == ["4", "5", "6", "7"]
    )


def test_a_crash_in_one_group_ends_collect_and_leaves_nothing_in_flight(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(crash_at=2), num_groups=4, ahead=4)
    with pytest.raises(RuntimeError, match="environment server is gone"):
        scheduler.collect(0)
    assert scheduler.num_in_flight == 0


def test_too_many_failed_attempts_stop_the_run_and_show_the_cause(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(fail=True), num_groups=4, max_failed_fraction=0.5)
    with pytest.raises(RewardError, match=r"4 of 4 attempts failed.*max_failed_fraction(.|\n)*4 x division by zero"):
        scheduler.collect(0)


def test_dropped_groups_are_replaced_by_later_tasks_under_ids_of_their_own(loop: EventLoopThread):
    scheduler = make(
        loop, DelayedRollouter(), keep=lambda g: int(g.task.task_id) % 2 == 0, num_groups=4, max_replacements=4
    )
    groups = scheduler.collect(0)
    # tasks 0..3 -> 0 and 2 kept; 4, 5 asked for -> 4 kept; 6 asked for -> kept
    assert [g.task.task_id for g in groups.kept] == ["0", "2", "4", "6"]
    assert [g.group_id for g in groups.kept] == [0, 2, -1, -3]
    assert [g.task.task_id for g in groups.dropped] == ["1", "3", "5"]


def test_when_the_filter_keeps_nothing_all_groups_are_dropped_ones(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(), keep=lambda g: False, num_groups=3, max_replacements=2)
    groups = scheduler.collect(0)
    assert (len(groups.kept), len(groups.dropped), len(groups.sampled)) == (0, 5, 5)


def test_failures_of_dropped_groups_count_as_well(loop: EventLoopThread):
    scheduler = make(loop, DelayedRollouter(fail=True), keep=lambda g: False, num_groups=4)
    with pytest.raises(RewardError, match="4 of 4 attempts failed"):
        scheduler.collect(0)
