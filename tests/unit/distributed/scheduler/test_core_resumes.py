"""The state of the core, taken at any moment: whatever goes on from it, every task is trained on once."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import CoreState, RolloutCore, SavedGroup
from roll.types.rollout import Task, TrajectoryGroup
from tests.helpers.virtual_time import run_virtually
from tests.unit.distributed.scheduler.schedules import any_bounds


@dataclass(frozen=True)
class Played(TrajectoryGroup):
    version: int = 0


@dataclass
class Moment:
    state: CoreState
    steps_done: int
    used: list[int]  # numbers that steps trained on, or that they had and the filter dropped


@dataclass
class Training:
    """A trainer that writes down what happens, and the state of the core whenever a group ends."""

    bounds: RolloutBounds
    seed: int
    max_replacements: int = 0
    version: int = 0
    steps_done: int = 0
    used: list[int] = field(default_factory=list)
    played: list[int] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    core: RolloutCore = field(init=False)

    def __post_init__(self) -> None:
        self.core = RolloutCore(self.play, self.bounds, lambda g: g.group_id % 5 > 0, self.max_replacements)

    def play(self, number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        self.played.append(number)
        return self._group(number, self.version)

    async def _group(self, number: int, version: int) -> TrajectoryGroup:
        random = np.random.default_rng([self.seed, number, version])
        await asyncio.sleep(float(random.lognormal(0.0, 1.5)))
        asyncio.get_running_loop().call_soon(self.look)
        return Played(Task(str(number), "d", np.zeros(1, np.int32)), number, (), version=version)

    def look(self) -> None:
        self.moments.append(Moment(self.core.state(), self.steps_done, list(self.used)))

    async def train(self, steps: int) -> None:
        for step in range(self.steps_done, self.steps_done + steps):
            groups = await self.core.collect(step)
            self.steps_done += 1
            self.used += [group.group_id for group in groups.sampled]
            self.ages += [step - group.version for group in groups.groups if isinstance(group, Played)]
            self.look()
            await asyncio.sleep(1.0)
            if (step + 1) % self.bounds.sync_interval == 0:
                self.version = step + 1
                self.core.published(step + 1)
                self.look()
        await self.core.cancel()


def waiting(state: CoreState) -> list[int]:
    return sorted([*(g.number for g in state.active), *state.deferred, *(number for number, _ in state.replaced)])


@settings(max_examples=200)
@given(any_bounds(), any_bounds(), st.integers(0, 999), st.integers(1, 3), st.integers(0, 999))
def test_every_number_is_used_once_over_a_stop_at_any_moment_and_a_resume_under_any_bounds(
    before: RolloutBounds, after: RolloutBounds, seed: int, replacements: int, moment: int
) -> None:
    first = Training(before, seed, replacements)
    run_virtually(first.train(3))
    stop = first.moments[moment % len(first.moments)]
    second = Training(after, seed + 1, replacements, stop.steps_done, stop.steps_done, list(stop.used))
    second.core.restore(stop.state, stop.steps_done)
    run_virtually(second.train(3))
    end = second.core.state()
    every = sorted(second.used + waiting(end))
    if "drop" in (before.unfinished, after.unfinished):
        assert len(every) == len(set(every)) and every[-1] < end.next
    else:
        assert every == list(range(end.next))
    if after.unfinished == "carry":
        assert not second.ages or max(second.ages) <= after.max_staleness


@settings(max_examples=100)
@given(any_bounds(), st.integers(0, 999), st.integers(0, 999))
def test_under_the_same_bounds_no_finished_group_is_played_again_and_no_deadline_changes(
    bounds: RolloutBounds, seed: int, moment: int
) -> None:
    first = Training(bounds, seed)
    run_virtually(first.train(4))
    published = [m for m in first.moments if m.steps_done % bounds.sync_interval == 0]
    stop = published[moment % len(published)]
    core = Training(bounds, seed).core
    core.restore(stop.state, stop.steps_done)
    if bounds.alternates:
        assert waiting(core.state()) == waiting(stop.state)
    else:
        assert core.state() == stop.state


def state_of(*groups: tuple[int, int, bool], deferred: tuple[int, ...] = ()) -> CoreState:
    """Of (number, version, is finished)."""
    task = Task("t", "d", np.zeros(1, np.int32))
    active = tuple(SavedGroup(n, v, TrajectoryGroup(task, n, ()) if done else None) for n, v, done in groups)
    return CoreState(max((*(n for n, _, _ in groups), *deferred)) + 1, active, deferred)


@pytest.mark.parametrize(
    ("bounds", "finished", "running", "deferred"),
    [
        (RolloutBounds(2, 4, max_staleness=2), [0, 1, 4], [2, 3], []),
        (RolloutBounds(2, 2, max_staleness=1), [0, 1], [2, 3], [4]),  # as many as there is room for, oldest first
        (RolloutBounds(1, 2, max_staleness=2), [0, 1], [2], [3, 4]),
        (RolloutBounds(5, 5, max_staleness=1), [0, 1, 4], [2, 3], []),
        (RolloutBounds(2), [], [], [0, 1, 2, 3, 4]),  # of version 4, and step 5 takes none of that age
        (RolloutBounds(2, 1, unfinished="defer"), [], [], [0, 1, 2, 3, 4]),
    ],
)
def test_a_resume_under_other_bounds_keeps_the_oldest_that_fit(
    bounds: RolloutBounds, finished: list[int], running: list[int], deferred: list[int]
) -> None:
    core = Training(bounds, 0).core
    core.restore(state_of((0, 4, True), (1, 4, True), (2, 4, False), (3, 5, False), (4, 5, True)), 5)
    state = core.state()
    assert [group.number for group in state.active if group.result is not None] == finished
    assert [group.number for group in state.active if group.result is None] == running
    assert list(state.deferred) == deferred


def test_of_groups_that_start_again_no_more_run_at_once_than_may() -> None:
    """6 were running; the resumed run may have 2 at once."""
    training = Training(RolloutBounds(3, 3, max_staleness=1), 0)
    core = training.core = RolloutCore(training.play, training.bounds, max_running=2)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, core.num_running)

    async def resumed() -> list[int]:
        training.look = look  # type: ignore[method-assign]
        core.restore(state_of(*((number, 0, False) for number in range(6))), 0)
        core.published(0)
        look()
        return [group.group_id for step in (0, 1) for group in (await core.collect(step)).groups]

    assert sorted(run_virtually(resumed())) == list(range(6))
    assert most == 2 and training.played[:6] == list(range(6))


def test_a_finished_group_that_would_be_too_old_is_played_again_under_its_number() -> None:
    """With 1 group a step, which may be 1 step old, the second group of version 4 would be trained on in step 6."""
    core = Training(RolloutBounds(1, 1, max_staleness=1), 0).core
    core.restore(state_of((0, 4, True), (1, 4, True)), 5)
    assert [(g.number, g.admitted_at, g.result is None) for g in core.state().active] == [(0, 4, False), (1, 5, True)]
