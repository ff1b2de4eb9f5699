"""The first steps of a run, played before it starts: the real core on a virtual clock, with groups that are nothing but
their length. Where a step would wait forever it does so here, in milliseconds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import Deadlock, run_virtually
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.types.rollout import Task, TrajectoryGroup

_TASK = Task("rehearsal", "rehearsal", np.zeros(0, np.int32))
_SLOW_S = 1e6  # longer than any step
_MOST_GROUPS = 32  # in a step of the play


@dataclass(frozen=True)
class _Play:
    name: str
    seconds: Callable[[int], float]
    keeps: bool


_PLAYS = (
    _Play("where all groups are kept", lambda number: 1.0, keeps=True),
    _Play("where the filter keeps none", lambda number: 1.0, keeps=False),
    _Play("where the first group is the slowest", lambda number: 1.0 if number else _SLOW_S, keeps=True),
)


def rehearse(bounds: RolloutBounds, max_replacements: int = 0, num_steps: int | None = None) -> str | None:
    """Simulate some steps under each of a few orders of events. Return why a step would wait forever, and under which
    order; None if none would. At least three steps are simulated, or as many as the largest staleness needs."""
    bounds, max_replacements = _in_small(bounds, max_replacements)
    enough = max(3, bounds.max_staleness + bounds.sync_interval + 2)
    steps = enough if num_steps is None else min(num_steps, enough)
    for play in _PLAYS:
        reached: list[int] = []
        try:
            run_virtually(_steps(play, bounds, max_replacements, num_steps, steps, reached))
        except Deadlock as error:
            return f"{play.name}, step {len(reached)} never gets its groups: {error}"
    return None


def _in_small(bounds: RolloutBounds, max_replacements: int) -> tuple[RolloutBounds, int]:
    """The same shares of fewer groups. `ahead` is rounded up: then what is above the bound stays above it, and what is
    not does not come there.

    Example: 4096 groups a step and 2049 ahead are played as 32 and 17.
    """
    if bounds.num_groups <= _MOST_GROUPS:
        return bounds, max_replacements
    share = _MOST_GROUPS / bounds.num_groups
    small = replace(bounds, num_groups=_MOST_GROUPS, ahead=ceil(bounds.ahead * share))
    return small, ceil(max_replacements * share)


async def _steps(
    play: _Play,
    bounds: RolloutBounds,
    max_replacements: int,
    num_steps: int | None,
    steps: int,
    reached: list[int],
) -> None:
    async def group(number: int) -> TrajectoryGroup:
        await asyncio.sleep(play.seconds(number))
        return TrajectoryGroup(_TASK, number, ())

    core = RolloutCore(group, bounds, lambda played: play.keeps, max_replacements, num_steps)
    for step in range(steps):
        await core.collect(step)
        reached.append(step)
        if (step + 1) % bounds.sync_interval == 0:
            core.published(step + 1)
    await core.cancel()
