"""What one group costs the core does not grow with the groups in flight: counted in lines of code that run."""

import asyncio
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.types.rollout import Task, TrajectoryGroup

OURS = ("rollout_core.py", "batch_plan.py")  # the second has the bounds
TASK = Task("t", "d", np.zeros(1, np.int32))


class Lines:
    """Counts the lines that run in the files of the core."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        self.count += event == "line"
        return self


async def lines_of_events(num_in_flight: int, num_events: int) -> int:
    """Groups end in any order while a step of one takes each, and the next one starts."""
    ends: dict[int, asyncio.Future[None]] = {}

    def play(number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        ends[number] = asyncio.get_running_loop().create_future()
        return group(number)

    async def group(number: int) -> TrajectoryGroup:
        await ends[number]
        return TrajectoryGroup(TASK, number, ())

    core = RolloutCore(play, RolloutBounds(1, num_in_flight - 1, max_staleness=num_in_flight))
    core.published(0)
    await asyncio.sleep(0)
    random, lines, before = np.random.default_rng(0), Lines(), sys.gettrace()
    order = random.permutation(num_in_flight)[:num_events]
    sys.settrace(lines)
    try:
        for step, number in enumerate(order.tolist()):
            ends[number].set_result(None)
            await core.collect(step)
            core.published(step + 1)
    finally:
        sys.settrace(before)
    await core.cancel()
    return lines.count


def test_an_event_costs_the_same_with_a_hundred_times_as_many_groups_in_flight() -> None:
    few, many = (asyncio.run(lines_of_events(count, 50)) for count in (200, 20_000))
    assert 50 * 10 < few < 50 * 400
    assert many < 1.5 * few
