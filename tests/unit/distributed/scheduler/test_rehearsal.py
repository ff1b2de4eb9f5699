"""The first steps of runs, played by the real core on a virtual clock: no step of sound bounds waits for ever."""

import asyncio
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import Deadlock, run_virtually
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.types.rollout import Task, TrajectoryGroup

SOUND = [
    RolloutBounds(n, ahead, interval, staleness)
    for n, interval, staleness in itertools.product((1, 3), (1, 2, 3), (0, 1, 2, 3))
    if staleness >= interval - 1
    for ahead in sorted({0, 1, (staleness + 1 - interval) * n})
    if ahead <= (staleness + 1 - interval) * n
]
PLAYS: dict[str, tuple[Callable[[int], float], bool]] = {
    "all groups are kept": (lambda number: 1.0, True),
    "the filter keeps none": (lambda number: 1.0, False),
    "the first group is the slowest": (lambda number: 1.0 if number else 1e6, True),
}
"""Seconds of each group, and whether the filter keeps it."""


class Unsound(RolloutBounds):
    """Bounds that nobody checks."""

    def __post_init__(self) -> None:
        pass


async def steps(play: str, bounds: RolloutBounds, max_replacements: int, num_steps: int | None) -> None:
    seconds, keeps = PLAYS[play]

    async def group(number: int) -> TrajectoryGroup:
        await asyncio.sleep(seconds(number))
        return TrajectoryGroup(Task("task", "task", np.zeros(0, np.int32)), number, ())

    core = RolloutCore(group, bounds, lambda played: keeps, max_replacements, num_steps)
    for step in range(num_steps or bounds.max_staleness + bounds.sync_interval + 3):
        await core.collect(step)
        if (step + 1) % bounds.sync_interval == 0:
            core.published(step + 1)
    await core.cancel()


@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.parametrize("bounds", SOUND)
@pytest.mark.parametrize("max_replacements", [0, 2])
def test_no_step_of_sound_bounds_waits_for_ever(play: str, bounds: RolloutBounds, max_replacements: int) -> None:
    run_virtually(steps(play, bounds, max_replacements, None))
    run_virtually(steps(play, bounds, max_replacements, 1))


@pytest.mark.parametrize("n, interval, staleness", itertools.product((1, 2, 5, 100), (1, 2), (0, 1, 2, 3)))
def test_one_group_more_than_is_allowed_waits_for_ever(n: int, interval: int, staleness: int) -> None:
    ahead = max(0, (staleness + 1 - interval) * n) + 1
    with pytest.raises(Deadlock, match=r"RolloutCore\._until_ready"):
        for play in PLAYS:
            run_virtually(steps(play, Unsound(n, ahead, interval, staleness), 0, None))
