"""Finished groups in a checkpoint: they come back whole, and nobody samples or scores them again."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.run.saving.resume import GroupsState
from roll.types.rollout import Generate, StoredRow, Task, Trajectory, TrajectoryGroup, stored_among
from tests.unit.distributed.scheduler.test_rollout_scheduler import one_token

BOUNDS = RolloutBounds(2, 4, max_staleness=2)


@dataclass
class Source:
    position: int = 0
    prefix: str = "task"

    def next_tasks(self, count: int) -> list[Task]:
        first, self.position = self.position, self.position + count
        ids = np.array([1, 2], np.int32)
        return [Task(f"{self.prefix} {i}", "d", ids) for i in range(first, first + count)]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


def whole(number: int) -> Trajectory:
    mask = np.array([False, False, True, True])
    return Trajectory(
        input_ids=np.array([1, 2, number, 7], np.int32),
        response_mask=mask,
        log_probs=np.where(mask, -0.25, 0).astype(np.float32),
        policy_versions=np.array([-1, -1, 3, 4], np.int32),
        reward=number / 3,
        finish_reason="stop",
        metrics={"correct": 1.0},
        response_text=f"answer {number}",
    )


@dataclass
class Rollouter:
    """All but the numbers that `hang` are finished at once; their tokens are `stored` elsewhere."""

    hang: tuple[int, ...] = ()
    stored: bool = False
    played: list[int] = field(default_factory=list)

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        self.played.append(group_id)
        if group_id in self.hang:
            await asyncio.Event().wait()
        row: Trajectory = whole(group_id)
        if self.stored:
            content = StoredRow("t", "x", group_id, row.facts)
            row = Trajectory(reward=row.reward, finish_reason="stop", content=content)
        return TrajectoryGroup(task, group_id, (row,))


def fetch(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    stored = map(stored_among, groups)
    return [
        [whole(found[i].row) if i in found else row for i, row in enumerate(rows)]
        for rows, found in zip(groups, stored, strict=True)
    ]


@pytest.fixture(scope="module")
def loop() -> Iterator[EventLoopThread]:
    thread = EventLoopThread("saved-groups-tests")
    yield thread
    thread.close()


def scheduler(loop: EventLoopThread, rollouter: Rollouter, source: Source, keep: Any = None) -> RolloutScheduler:
    return RolloutScheduler(loop, rollouter, one_token, source, SchedulerSettings(BOUNDS), keep, fetch)


def stopped(loop: EventLoopThread, directory: Path, **settings: Any) -> dict[str, Any]:
    """The state after a step, once the others that do not hang are finished: 0 and 2 are trained on, 1 hangs."""
    running = scheduler(loop, Rollouter((1,), **settings), Source())
    taken = running.collect(0)
    assert [group.group_id for group in taken.groups] == [0, 2]
    running.published(1)
    loop.run(all_but(running, 1))
    state = json.loads(json.dumps(running.save(directory)))
    loop.run(running._core.cancel())
    return state


async def all_but(running: RolloutScheduler, count: int) -> None:
    while running.num_running > count:
        await asyncio.sleep(0)


def resumed(
    loop: EventLoopThread, directory: Path, state: dict[str, Any], source: Source | None = None
) -> tuple[RolloutScheduler, Rollouter]:
    source, rollouter = source or Source(), Rollouter((1,))
    source.load_state_dict(state["data"])
    again = scheduler(loop, rollouter, source)
    again.restore(directory, GroupsState.model_validate(state["groups"]).model_dump(), 1)
    return again, rollouter


@pytest.mark.parametrize("stored", [False, True])
def test_finished_groups_come_back_with_their_tokens_and_are_not_played_again(
    loop: EventLoopThread, tmp_path: Path, stored: bool
) -> None:
    state = stopped(loop, tmp_path, stored=stored)
    assert state["groups"]["active"] == [[1, 0], [3, 0], [4, 0], [5, 0], [6, 1], [7, 1]]
    again, rollouter = resumed(loop, tmp_path, state)
    assert rollouter.played == []  # nothing runs before the engines have the weights
    again.published(1)
    found = again.collect(1).groups
    assert [group.group_id for group in found] == [3, 4] and rollouter.played == [1]
    assert [group.task.task_id for group in found] == ["task 3", "task 4"]
    (row,) = found[0].trajectories
    assert row.is_here
    assert (row.input_ids.tolist(), row.policy_versions.tolist()) == ([1, 2, 3, 7], [-1, -1, 3, 4])
    assert (row.reward, row.response_text) == (1.0, "answer 3")


def test_a_group_of_another_task_is_played_again(
    loop: EventLoopThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = stopped(loop, tmp_path)
    again, rollouter = resumed(loop, tmp_path, state, Source(prefix="other"))
    assert "group 3 of task task 3 is sampled again" in caplog.text
    again.published(1)
    assert [group.task.task_id for group in again.collect(1).groups] == ["other 3", "other 4"]
    assert 3 in rollouter.played


def test_what_the_filter_dropped_stays_dropped(loop: EventLoopThread, tmp_path: Path) -> None:
    def never(group: TrajectoryGroup) -> bool:
        return False

    running = scheduler(loop, Rollouter((1,)), Source(), keep=never)
    assert [group.group_id for group in running.collect(0).dropped] == [0, 2]
    running.published(1)
    loop.run(all_but(running, 1))
    state = json.loads(json.dumps(running.save(tmp_path)))
    loop.run(running._core.cancel())
    assert state["groups"]["dropped"] == [3, 4, 5, 6, 7]
    again, rollouter = resumed(loop, tmp_path, state)
    again.published(1)
    groups = again.collect(1)
    assert ([g.group_id for g in groups.dropped], groups.groups, rollouter.played) == ([3, 4], [], [1])
