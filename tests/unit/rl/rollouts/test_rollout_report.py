"""What the log says of a rollout under way."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from roll.rl.rollouters import ReportedRollouter, RolloutReport
from roll.types.rollout import Generate, Task, TrajectoryGroup
from tests.helpers.virtual_time import run_virtually

TASK = Task("t", "math", np.array([1], np.int32))


class Sleeper:
    """Group n takes n seconds; group 13 fails."""

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        await asyncio.sleep(group_id)
        if group_id == 13:
            raise ValueError("unlucky")
        return TrajectoryGroup(task, group_id, ())


def test_a_line_every_interval_while_groups_are_under_way_and_none_after(caplog: pytest.LogCaptureFixture) -> None:
    loads = {1: 6, 0: 4}
    rollouter = ReportedRollouter(Sleeper(), RolloutReport(10.0, lambda: loads))

    async def play() -> None:
        async def run(group_id: int) -> None:
            await rollouter.run_group(TASK, group_id, 0, None)  # type: ignore[arg-type]

        first = asyncio.gather(*(run(n) for n in (25, 13, 4, 5)), return_exceptions=True)
        await asyncio.sleep(15)
        loads.update({0: 0, 1: 0})
        found = await first
        assert [type(each).__name__ for each in found] == ["NoneType", "ValueError", "NoneType", "NoneType"]
        await asyncio.sleep(100)
        await run(11)

    with caplog.at_level(logging.INFO, "roll.rl.rollouters"):
        run_virtually(play())
    assert [record.getMessage() for record in caplog.records] == [
        "rollout: 2 groups in flight, 2 ended in the last 10 s; the oldest, group 25, began 10 s ago; responses in "
        "flight by engine: 0: 4, 1: 6",
        "rollout: 1 groups in flight, 1 ended in the last 10 s; the oldest, group 25, began 20 s ago",
        "rollout: 1 groups in flight, 0 ended in the last 10 s; the oldest, group 11, began 10 s ago",
    ]
