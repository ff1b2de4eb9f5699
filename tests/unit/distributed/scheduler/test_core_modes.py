"""Steps that leave nothing under way: over-rollout with drop and defer, groups in advance of a filter, the grace."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import RolloutCore, StepGroups
from roll.types.rollout import Task, TrajectoryGroup
from tests.helpers.virtual_time import run_virtually
from tests.unit.distributed.scheduler.schedules import bounds_within_a_step

TASK = Task("t", "d", np.zeros(1, np.int32))
SEEDS = st.integers(0, 999)


@dataclass
class Training:
    """Groups that take the `seconds` of their number, steps that train for a second."""

    bounds: RolloutBounds
    seconds: Callable[[int], float]
    drops: Callable[[int], bool] = lambda number: False
    max_replacements: int = 0
    num_steps: int | None = None
    steps: list[StepGroups] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    started: list[list[int]] = field(default_factory=list)  # by step
    cancelled: list[int] = field(default_factory=list)

    def play(self, number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        self.started[-1].append(number)
        return self._group(number)

    async def _group(self, number: int) -> TrajectoryGroup:
        try:
            await asyncio.sleep(self.seconds(number))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return TrajectoryGroup(TASK, number, ())

    async def train(self, steps: int) -> None:
        def keep(group: TrajectoryGroup) -> bool:
            return not self.drops(group.group_id)

        core = RolloutCore(self.play, self.bounds, keep, self.max_replacements, self.num_steps)
        clock = asyncio.get_running_loop()
        for step in range(steps):
            self.started.append([])
            begun = clock.time()
            self.steps.append(await core.collect(step))
            self.waited_s.append(clock.time() - begun)
            assert core.num_running == 0 and not core.state().active  # the engines are quiet
            assert len(asyncio.all_tasks()) == 1
            await asyncio.sleep(1.0)
            core.published(step + 1)
            assert core.num_running == 0

    def run(self, steps: int) -> "Training":
        run_virtually(self.train(steps))
        return self

    @property
    def kept(self) -> list[list[int]]:
        return [[group.group_id for group in step.groups] for step in self.steps]

    @property
    def dropped(self) -> list[list[int]]:
        return [[group.group_id for group in step.dropped] for step in self.steps]


def lengths(seed: int) -> Callable[[int], float]:
    return lambda number: float(np.random.default_rng([seed, number]).lognormal(0.0, 1.5))


def third(number: int) -> bool:
    return number % 3 == 1


@settings(max_examples=100)
@given(bounds_within_a_step(), SEEDS, st.integers(0, 4), st.booleans())
def test_a_batch_is_whole_and_nothing_outlives_its_step(
    bounds: RolloutBounds, seed: int, replacements: int, keeps_none: bool
) -> None:
    found = Training(bounds, lengths(seed), (lambda n: True) if keeps_none else third, replacements).run(6)
    again = Training(bounds, lengths(seed), (lambda n: True) if keeps_none else third, replacements).run(6)
    assert (again.kept, again.dropped, again.started) == (found.kept, found.dropped, found.started)
    used = [number for step in found.steps for number in sorted(group.group_id for group in step.sampled)]
    assert len(set(used)) == len(used)
    for step in found.steps:
        num_replaced = len(step.sampled) - bounds.num_groups
        assert 0 <= num_replaced <= replacements and num_replaced <= len(step.dropped)
        assert step.backlog is None or (step.backlog.running, step.backlog.finished) == (0, 0)


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(0, 8), st.integers(0, 4), SEEDS, SEEDS)
def test_groups_in_advance_of_a_filter_change_no_batch(
    num_groups: int, additional: int, replacements: int, seed: int, other: int
) -> None:
    def run(seed: int, additional: int) -> Training:
        return Training(RolloutBounds(num_groups, additional=additional), lengths(seed), third, replacements).run(5)

    one, two = run(seed, additional), run(other, 0)
    assert (one.kept, one.dropped) == (two.kept, two.dropped)
    for step, started in zip(one.steps, one.started, strict=True):
        assert started == sorted(started) and len(started) <= num_groups + additional + replacements
        assert additional == 0 or (step.backlog is not None and step.backlog.cancelled <= step.backlog.deferred)


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(0, 6), SEEDS)
def test_over_rollout_takes_those_that_end_first_and_drops_the_others_for_good(n: int, ahead: int, seed: int) -> None:
    seconds = lengths(seed)
    found = Training(RolloutBounds(n, ahead, unfinished="drop"), seconds).run(5)
    for i, (started, kept, step) in enumerate(zip(found.started, found.kept, found.steps, strict=True)):
        assert started == list(range(i * (n + ahead), (i + 1) * (n + ahead)))
        assert kept == sorted(sorted(started, key=seconds)[:n])
        assert step.backlog is not None and (step.backlog.cancelled, step.backlog.deferred) == (ahead, 0)
    assert len(found.cancelled) == 5 * ahead


@settings(max_examples=150)
@given(st.integers(1, 5), st.integers(0, 8), st.integers(1, 9), st.sampled_from([0.0, 0.5]), st.integers(0, 3), SEEDS)
def test_deferring_trains_every_number_in_the_end(
    n: int, ahead: int, steps: int, grace_s: float, replacements: int, seed: int
) -> None:
    bounds = RolloutBounds(n, ahead, unfinished="defer", grace_s=grace_s)
    found = Training(bounds, lengths(seed), third, replacements, steps).run(steps)
    used = sorted(group.group_id for step in found.steps for group in step.sampled)
    assert used == list(range(len(used)))
    deferred = 0
    for started, step in zip(found.started, found.steps, strict=True):
        if deferred >= n:  # one round of these alone, but for what the filter drops among them
            assert len(started) <= n + replacements and step.backlog is not None and step.backlog.cancelled == 0
        deferred = step.backlog.deferred if step.backlog is not None else 0
    assert deferred == 0


@pytest.mark.parametrize(
    ("grace_s", "kept", "waited_s"), [(0.0, [1, 2], 2.0), (0.5, [1, 2], 2.5), (1.5, [0, 1], 3.0), (9.0, [0, 1], 3.0)]
)
def test_within_the_grace_older_groups_take_the_place_of_younger_ones(
    grace_s: float, kept: list[int], waited_s: float
) -> None:
    """Groups 1 and 2 end after 1 s and 2 s, group 0 after 3 s."""
    found = Training(RolloutBounds(2, 1, unfinished="drop", grace_s=grace_s), lambda n: [3.0, 1.0, 2.0][n]).run(1)
    assert (found.kept, found.waited_s) == ([kept], [pytest.approx(waited_s)])


@settings(max_examples=50)
@given(bounds_within_a_step(), SEEDS, st.integers(0, 12))
def test_a_group_that_fails_ends_the_step_that_needs_it(bounds: RolloutBounds, seed: int, failing: int) -> None:
    class Failing(Training):
        async def _group(self, number: int) -> TrajectoryGroup:
            group = await super()._group(number)
            if number == failing:
                raise RuntimeError("the environment server is gone")
            return group

    found = Failing(bounds, lengths(seed))
    try:
        run_virtually(found.train(4))
    except RuntimeError as error:
        assert "server is gone" in str(error)
    assert not any(failing == group.group_id for step in found.steps for group in step.sampled)
