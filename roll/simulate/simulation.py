"""Plays a run on a clock of numbers and says how it went: groups within their bounds, and the phases of a step in the
order of `RLPipeline.step`."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from roll.distributed.scheduler.rollout_core import can_take
from roll.simulate.engines import Engines, Group
from roll.simulate.setup import Devices, Setup


@dataclass(frozen=True)
class StepReport:
    """`groups`: numbers of those that were trained on; `ages`: theirs in steps, from their start; `num_tokens`: sampled
    ones."""

    seconds: float
    phases: dict[str, float]
    groups: tuple[int, ...]
    ages: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class Report:
    """The steps after the first ones, in which the rollouts get ahead."""

    steps: tuple[StepReport, ...]
    devices: Devices
    engines: Mapping[str, float]
    train_busy_s: float
    seconds: float
    num_sampled: float  # tokens

    @property
    def step_s(self) -> float:
        return self.seconds / len(self.steps)

    @property
    def median_step_s(self) -> float:
        return statistics.median(step.seconds for step in self.steps)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the groups, counted from their start."""
        return statistics.fmean(age for step in self.steps for age in step.ages)

    @property
    def staleness_max(self) -> int:
        return max(age for step in self.steps for age in step.ages)

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(step.num_tokens for step in self.steps) / self.seconds

    @property
    def useful_fraction(self) -> float:
        """Trained tokens of all that were sampled meanwhile; near 1 but for what is dropped or begun anew."""
        return sum(step.num_tokens for step in self.steps) / self.num_sampled if self.num_sampled else 0.0

    def fraction(self, state: str) -> float:
        """Fraction of the engines' time in this state."""
        return self.engines.get(state, 0.0) / (self.seconds * self.devices.num_engines)

    @property
    def trainer_busy_fraction(self) -> float:
        return self.train_busy_s / self.seconds

    def phase_s(self, name: str) -> float:
        return statistics.fmean(step.phases.get(name, 0.0) for step in self.steps)


def simulate(setup: Setup, num_steps: int = 8, warmup: int | None = None) -> Report:
    """`num_steps` steps after `warmup` (as many as groups may be ahead, and one)."""
    first = setup.bounds.max_staleness + 1 if warmup is None else warmup
    played = _Played(setup)
    for step in range(first):
        played.step(step)
    engines = played.engines
    before = engines.now, engines.seconds, played.train_busy_s, played.num_sampled
    steps = tuple(played.step(first + number) for number in range(num_steps))
    return Report(
        steps=steps,
        devices=setup.devices,
        engines={state: seconds - before[1].get(state, 0.0) for state, seconds in engines.seconds.items()},
        train_busy_s=played.train_busy_s - before[2],
        seconds=engines.now - before[0],
        num_sampled=played.num_sampled - before[3],
    )


class _Played:
    """The run so far. Which groups may start and which a step takes is as in `RolloutCore`, without a filter."""

    def __init__(self, setup: Setup):
        self._setup, self._bounds, self._costs = setup, setup.bounds, setup.costs
        self.engines = Engines(setup.costs, setup.devices.num_engines, setup.max_running)
        self.train_busy_s = 0.0
        self._active: dict[int, Group] = {}
        self._finished: dict[int, Group] = {}  # of these
        self._deferred: list[int] = []
        self._next = self._version = self._num_taken = 0
        self._are_away = False
        self._phases: defaultdict[str, float] = defaultdict(float)

    @property
    def num_sampled(self) -> float:
        return sum(engine.num_sampled for engine in self.engines.engines)

    def step(self, step: int) -> StepReport:
        began = self.engines.now
        self._phases = defaultdict(float)
        with self._phase("rollout"):
            self._turn(leaves=False)
            groups = self._collect(step)
        with self._phase("gather"):
            self.engines.spend(self._costs.driver_s)
        self._learn(sum(group.num_tokens for group in groups))
        with self._phase("weight_sync"):
            self._publish(step + 1)
        if not self._bounds.alternates:
            self._turn(leaves=False)  # those that sample ahead return at once
        seconds = self.engines.now - began
        phases = {**self._phases, "other": max(0.0, seconds - sum(self._phases.values()))}
        ages = tuple(step - group.version for group in groups)
        num_tokens = sum(length for group in groups for length in group.lengths)
        return StepReport(seconds, phases, tuple(group.number for group in groups), ages, num_tokens)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = self.engines.now
        yield
        self._phases[name] += self.engines.now - began

    def _collect(self, step: int) -> list[Group]:
        bounds = self._bounds
        plays_deferred = bounds.unfinished == "defer" and len(self._deferred) >= bounds.num_groups
        self._admit(bounds.num_groups if plays_deferred else None, plays_deferred)
        self.engines.run_until(lambda: self._is_ready(step))
        groups = [self._finished.pop(number) for number in sorted(self._finished)[: bounds.num_groups]]
        for group in groups:
            del self._active[group.number]
        if bounds.alternates:
            self.engines.give_up(self._active.values())
            self._deferred += [] if bounds.unfinished == "drop" else [*self._active]
            self._active.clear()
            self._finished.clear()
        self._num_taken += bounds.num_groups
        return groups

    def _admit(self, room: int | None = None, plays_deferred: bool = False) -> None:
        bounds = self._bounds
        if room is None:
            room = bounds.num_groups + bounds.ahead if bounds.alternates else bounds.capacity - self._num_taken
        while len(self._active) < room:
            if self._deferred and (plays_deferred or bounds.unfinished != "defer"):
                number = self._deferred.pop(self._deferred.index(min(self._deferred)))
            else:
                number, self._next = self._next, self._next + 1
            work = self._setup.workload.group(number, self._setup.group_size)
            lengths = np.maximum(work.lengths, 1).tolist()
            self._active[number] = Group(number, self._version, work.prompt, lengths)
            self.engines.begin(self._active[number])

    def _is_ready(self, step: int) -> bool:
        bounds = self._bounds
        self._finished |= {group.number: group for group in self.engines.ended}
        self.engines.ended.clear()
        if len(self._finished) < bounds.num_groups or bounds.alternates:
            return len(self._finished) >= bounds.num_groups
        finished, active = (
            Counter(group.version + bounds.max_staleness for group in groups.values())
            for groups in (self._finished, self._active)
        )
        return can_take(finished, active, step, bounds.num_groups)

    def _learn(self, num_tokens: int) -> None:
        costs, setup = self._costs, self._setup
        with self._phase("score"):
            for devices in setup.passes.values():
                self._turn(leaves=True)
                self._work(num_tokens / (costs.score_tokens_per_s * devices))
        train_s = costs.train_overhead_s + num_tokens / (costs.train_tokens_per_s * setup.devices.train)
        if setup.trains_critic:
            with self._phase("train_critic"):
                self._turn(leaves=True)
                self._work(train_s * costs.critic_share)
        with self._phase("train_actor"):
            self._turn(leaves=True)
            self._work(train_s)

    def _publish(self, version: int) -> None:
        if version % self._bounds.sync_interval == 0:
            self.engines.publish(lambda: self._work(self._costs.publish_s))
            self._version, self._num_taken = version, 0
            if self._bounds.ahead and not self._bounds.alternates:
                self._admit()

    def _work(self, seconds: float) -> None:
        began = self.engines.now
        self.engines.spend(seconds)
        self.train_busy_s += self.engines.now - began

    def _turn(self, leaves: bool) -> None:
        """Moves the engines off shared devices for the trainer, or back without their cache."""
        if not self._setup.devices.common or leaves == self._are_away:
            return
        self._are_away = leaves
        if leaves:
            self.engines.leave(self._setup.devices.num_leaving)
        self.engines.wait(self._costs.turn_s)
        if not leaves:
            self.engines.come_back()
