"""The core on a virtual clock, with groups that take any time: what every schedule must keep to."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.types.rollout import Task, TrajectoryGroup
from tests.helpers.virtual_time import Deadlock, run_virtually
from tests.unit.distributed.scheduler.schedules import bounds_that_cannot_deadlock

TASK = Task("t", "d", np.zeros(1, np.int32))


@dataclass
class Training:
    """A trainer that takes groups and publishes; it writes down what happens."""

    bounds: RolloutBounds
    seconds: Callable[[int], float]
    drops: Callable[[int], bool] = lambda number: False
    max_replacements: int = 0
    num_steps: int | None = None
    max_running: int | None = None
    step_s: float = 1.0
    version: int = 0
    started: dict[int, int] = field(default_factory=dict)  # version, by number
    kept: list[list[int]] = field(default_factory=list)  # by step
    dropped: list[list[int]] = field(default_factory=list)
    most: int = 0
    num_taken: int = 0
    ages: list[int] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def core(self) -> RolloutCore:
        def keep(group: TrajectoryGroup) -> bool:
            return not self.drops(group.group_id)

        return RolloutCore(self.play, self.bounds, keep, self.max_replacements, self.num_steps, self.max_running)

    def play(self, number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        self.started.setdefault(number, self.version)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        return self._group(number)

    async def _group(self, number: int) -> TrajectoryGroup:
        await asyncio.sleep(self.seconds(number))
        self.running -= 1
        return TrajectoryGroup(TASK, number, ())

    async def train(self, core: RolloutCore, first: int, last: int) -> None:
        for step in range(first, last):
            groups = await core.collect(step)
            self.kept.append([g.group_id for g in groups.groups])
            self.dropped.append([g.group_id for g in groups.dropped])
            self.ages += [step - self.started[number] for number in self.kept[-1]]
            self.num_taken += self.bounds.num_groups
            self.most = max(self.most, len(core.state().active) + self.num_taken)
            await asyncio.sleep(self.step_s)
            if (step + 1) % self.bounds.sync_interval == 0:
                self.version, self.num_taken = step + 1, 0
                core.published(step + 1)

    def run(self, steps: int) -> "Training":
        async def work() -> None:
            core = self.core()
            await self.train(core, 0, steps)
            await core.cancel()

        run_virtually(work())
        return self


def lengths(seed: int) -> Callable[[int], float]:
    """A heavy tail: some groups take a hundred times as long as others."""
    return lambda number: float(np.random.default_rng([seed, number]).lognormal(0.0, 1.5))


@settings(max_examples=100)
@given(
    bounds_that_cannot_deadlock(),
    st.integers(0, 999),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.2, 3.0]),
    st.none() | st.integers(1, 6),
)
def test_bounds_hold_in_every_schedule(
    bounds: RolloutBounds, seed: int, steps: int, step_s: float, max_running: int | None
) -> None:
    found = Training(bounds, lengths(seed), step_s=step_s, max_running=max_running).run(steps)
    assert found.most_running <= min(bounds.capacity, max_running or bounds.capacity)
    assert [len(batch) for batch in found.kept] == [bounds.num_groups] * steps
    assert max(found.ages) <= bounds.max_staleness and min(found.ages) >= 0
    assert found.most <= bounds.capacity
    trained = [number for batch in found.kept for number in batch]
    assert len(set(trained)) == len(trained)
    assert all(batch == sorted(batch) for batch in found.kept)
    again = Training(bounds, lengths(seed), step_s=step_s, max_running=max_running).run(steps)
    assert again.kept == found.kept


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(0, 999), st.integers(0, 999), st.integers(0, 6), st.integers(1, 8))
def test_without_staleness_a_step_depends_on_the_data_alone(
    num_groups: int, seed: int, other: int, replacements: int, steps: int
) -> None:
    """However long the groups take, and whichever a filter drops."""

    def drops(number: int) -> bool:
        return number % 3 == 1

    bounds = RolloutBounds(num_groups)
    one, two = (
        Training(bounds, lengths(s), drops, replacements, max_running=most).run(steps)
        for s, most in ((seed, None), (other, 2))
    )
    assert (one.kept, one.dropped) == (two.kept, two.dropped)
    for kept, dropped in zip(one.kept, one.dropped, strict=True):
        assert len(kept) + len(dropped) == num_groups + min(len(dropped), replacements)
        assert all(map(drops, dropped)) and not any(map(drops, kept))
    every = sorted(n for batch in (*one.kept, *one.dropped) for n in batch)
    assert every == list(range(len(every)))
    if not replacements:
        firsts = [min(kept + dropped) for kept, dropped in zip(one.kept, one.dropped, strict=True)]
        assert firsts == [step * num_groups for step in range(steps)]


class Unsound(RolloutBounds):
    """Bounds that nobody checks."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize("bounds", [Unsound(2, 1), Unsound(3, 4, max_staleness=1), Unsound(2, 1, 2, 1)])
def test_one_group_more_than_is_allowed_may_wait_for_ever(bounds: RolloutBounds) -> None:
    assert bounds.capacity == (bounds.max_staleness + 1) * bounds.num_groups + 1
    with pytest.raises(Deadlock):
        Training(bounds, lambda number: 1.0).run(12)


@given(bounds_that_cannot_deadlock(), st.integers(1, 6))
def test_nothing_is_started_that_no_step_would_take(bounds: RolloutBounds, steps: int) -> None:
    found = Training(bounds, lengths(1), num_steps=steps).run(steps)
    assert len(found.started) == steps * bounds.num_groups


def test_groups_ahead_use_the_time_of_the_longest_one() -> None:
    """One group in eight takes ten times as long: a step that may be two behind does not wait for it."""

    def seconds(number: int) -> float:
        return 10.0 if number % 8 == 0 else 1.0

    async def time_of(bounds: RolloutBounds) -> float:
        training = Training(bounds, seconds)
        core = training.core()
        await training.train(core, 0, 20)
        await core.cancel()
        return asyncio.get_running_loop().time()

    alternating = run_virtually(time_of(RolloutBounds(8)))
    ahead = run_virtually(time_of(RolloutBounds(8, 8, max_staleness=2)))
    assert alternating == pytest.approx(20 * 11) and ahead < 0.6 * alternating


@pytest.mark.parametrize("failing", [1, 5])
def test_the_first_group_that_fails_ends_the_wait_also_one_of_a_later_step(failing: int) -> None:
    class Failing(Training):
        async def _group(self, number: int) -> TrajectoryGroup:
            if number == failing:
                raise RuntimeError("the environment server is gone")
            return await super()._group(number)

    with pytest.raises(RuntimeError, match="server is gone"):
        Failing(RolloutBounds(4, 4, max_staleness=1), lambda number: 5.0).run(1)
