"""Plays a run on a virtual clock and says how it went."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from roll.distributed.scheduler.event_loop import run_virtually
from roll.distributed.scheduler.filters import length_bias
from roll.distributed.scheduler.rollout_core import GroupBacklog, RolloutCore, StepGroups
from roll.simulate.engine_model import EngineSeconds
from roll.simulate.fleet import Fleet
from roll.simulate.rollouts import LengthSum, SimulatedRollouter
from roll.simulate.setup import Setup
from roll.simulate.step_model import StepModel
from roll.types.rollout import TrajectoryGroup
from roll.utils.spans import MOST_EVENTS, Event, Spans
from roll.utils.timing import phase_seconds


@dataclass(frozen=True)
class StepReport:
    seconds: float
    phases: dict[str, float]
    groups: tuple[int, ...]  # numbers of those that were trained on
    ages: tuple[int, ...]  # in steps, of those groups, from their start
    token_ages: Counter[int]  # sampled tokens by age
    num_answers: int
    num_tokens: int  # sampled ones that were trained on
    num_dropped: int
    bias: float | None  # as a run reports it


@dataclass(frozen=True)
class Report:
    """The steps after the first ones, in which the rollouts get ahead."""

    steps: tuple[StepReport, ...]
    engines: EngineSeconds
    train_busy_s: float
    seconds: float
    num_engines: int
    num_devices: int
    num_sampled: float  # tokens
    num_prefilled: int
    num_preemptions: int
    started: LengthSum
    events: tuple[Event, ...] = ()

    @property
    def step_s(self) -> float:
        return self.seconds / len(self.steps)

    @property
    def median_step_s(self) -> float:
        return statistics.median(step.seconds for step in self.steps)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the groups, counted from their start."""
        ages = [age for step in self.steps for age in step.ages]
        return statistics.fmean(ages) if ages else 0.0

    @property
    def staleness_max(self) -> int:
        return max((age for step in self.steps for age in step.ages), default=0)

    @property
    def token_ages(self) -> Counter[int]:
        return sum((step.token_ages for step in self.steps), Counter[int]())

    @property
    def token_staleness_mean(self) -> float:
        ages = self.token_ages
        return sum(age * count for age, count in ages.items()) / ages.total() if ages else 0.0

    @property
    def length_bias(self) -> float | None:
        biases = [step.bias for step in self.steps if step.bias is not None]
        return statistics.fmean(biases) if biases else None

    @property
    def length_ratio(self) -> float:
        """Mean length of the trained answers over that of all that were begun, known here to their ends."""
        trained = LengthSum(sum(s.num_answers for s in self.steps), sum(s.num_tokens for s in self.steps))
        return trained.mean / self.started.mean if self.started.mean else 0.0

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(step.num_tokens for step in self.steps) / self.seconds

    @property
    def useful_fraction(self) -> float:
        """Trained tokens of all that were sampled meanwhile; near 1 but for what is dropped or begun anew."""
        return sum(step.num_tokens for step in self.steps) / self.num_sampled if self.num_sampled else 0.0

    def fraction(self, state: str) -> float:
        """Fraction of the engines' time in this state."""
        return getattr(self.engines, state) / (self.seconds * self.num_engines)

    @property
    def trainer_busy_fraction(self) -> float:
        return self.train_busy_s / self.seconds

    def phase_s(self, name: str) -> float:
        return statistics.fmean(step.phases.get(name, 0.0) for step in self.steps)


def simulate(setup: Setup, num_steps: int = 8, warmup: int | None = None, keeps_trace: bool = False) -> Report:
    """`num_steps` steps after `warmup` (as many as groups may be ahead, and one). Raises Deadlock, and whatever a part
    of the run raises."""
    first = setup.bounds.max_staleness + 1 if warmup is None else warmup
    with _uncollected():
        return run_virtually(_play(setup, first, num_steps, keeps_trace))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turns Python's cycle collector off. A simulation makes no cycles that grow, and with many responses the collector
    takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _play(setup: Setup, warmup: int, num_steps: int, keeps_trace: bool) -> Report:
    loop = asyncio.get_running_loop()
    spans = Spans(MOST_EVENTS if keeps_trace else 0, loop.time)
    tally = _Tally(setup, spans)
    fleet = Fleet(setup.costs, setup.devices.num_engines, setup.max_running, spans)
    rollouter = SimulatedRollouter(fleet, setup, spans)

    def play_group(number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        tally.started[number] = fleet.version
        spans.mark(number, "admitted")
        return rollouter.run_group(number)

    core = RolloutCore(play_group, setup.bounds, setup.keep, setup.max_replacements)
    model = StepModel(setup, core, fleet, spans)
    before = _Counts.of(fleet, model, rollouter, loop.time())
    for step in range(warmup + num_steps):
        if step == warmup:
            before = _Counts.of(fleet, model, rollouter, loop.time())
        model.timer.reset()
        groups = await model.step(step)
        tally.add(step, groups, model.timer.metrics(), rollouter, fleet.cut)
        fleet.cut.clear()
    fleet.close()
    after = _Counts.of(fleet, model, rollouter, loop.time())
    await core.cancel()
    return after.since(before, tally, warmup)


class _Tally:
    """Writes down what the steps got."""

    def __init__(self, setup: Setup, spans: Spans):
        self.setup, self.spans = setup, spans
        self.started: dict[int, int] = {}  # version, by number
        self.steps: list[StepReport] = []

    def add(
        self,
        step: int,
        groups: StepGroups,
        metrics: Mapping[str, float],
        rollouter: SimulatedRollouter,
        cut: Sequence[tuple[int, bool]],
    ) -> None:
        numbers = tuple(group.group_id for group in groups.groups)
        token_ages: Counter[int] = Counter()
        num_tokens = 0.0
        for number in numbers:
            for answer in rollouter.sampled.pop(number):
                for version, count in answer.versions:
                    token_ages[step - version] += round(count)
                    num_tokens += count
        for group in groups.dropped:
            del rollouter.sampled[group.group_id]
        groups_left = groups.backlog or GroupBacklog()
        cut = () if self.setup.bounds.is_in_order else cut
        if self.setup.bounds.unfinished != "carry":  # the others are gone, or start again
            rollouter.sampled.clear()
        ages = tuple(step - self.started.pop(group.group_id) for group in groups.sampled)
        self.steps.append(
            StepReport(
                seconds=metrics["time/step_s"],
                phases=phase_seconds(metrics),
                groups=numbers,
                ages=ages[: len(numbers)],
                token_ages=token_ages,
                num_answers=sum(len(group.trajectories) for group in groups.groups),
                num_tokens=round(num_tokens),
                num_dropped=len(groups.dropped),
                bias=length_bias([*groups.sampled, *groups_left.results], groups.groups, cut),
            )
        )


@dataclass(frozen=True)
class _Counts:
    """Sums since the start of the run."""

    seconds: float
    engines: EngineSeconds
    train_busy_s: float
    num_sampled: float
    num_prefilled: int
    num_preemptions: int
    started: LengthSum

    @classmethod
    def of(cls, fleet: Fleet, model: StepModel, rollouter: SimulatedRollouter, now: float) -> _Counts:
        return cls(
            seconds=now,
            engines=fleet.seconds,
            train_busy_s=model.train_busy_s,
            num_sampled=sum(engine.num_sampled for engine in fleet.engines),
            num_prefilled=sum(engine.num_prefilled for engine in fleet.engines),
            num_preemptions=sum(engine.num_preemptions for engine in fleet.engines),
            started=rollouter.started,
        )

    def since(self, before: _Counts, tally: _Tally, warmup: int) -> Report:
        setup = tally.setup
        return Report(
            steps=tuple(tally.steps[warmup:]),
            engines=self.engines.less(before.engines),
            train_busy_s=self.train_busy_s - before.train_busy_s,
            seconds=self.seconds - before.seconds,
            num_engines=setup.devices.num_engines,
            num_devices=setup.devices.total,
            num_sampled=self.num_sampled - before.num_sampled,
            num_prefilled=self.num_prefilled - before.num_prefilled,
            num_preemptions=self.num_preemptions - before.num_preemptions,
            started=self.started.less(before.started),
            events=tuple(tally.spans.events()),
        )
