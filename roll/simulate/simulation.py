"""Plays a run on a virtual clock and says how it went."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from roll.distributed.scheduler.event_loop import run_virtually
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.simulate.engine_model import Answer, EngineSeconds
from roll.simulate.fleet import Fleet, Flight
from roll.simulate.setup import Devices, Setup
from roll.simulate.step_model import StepModel
from roll.simulate.workload import Workload
from roll.types.rollout import GenerationRequest, RowFacts, SamplingParams, StoredRow, Task, Trajectory, TrajectoryGroup
from roll.utils.timing import phase_seconds


@dataclass(frozen=True)
class StepReport:
    seconds: float
    phases: dict[str, float]
    groups: tuple[int, ...]  # numbers of those that were trained on
    ages: tuple[int, ...]  # in steps, of those groups, from their start
    token_ages: Counter[int]  # sampled tokens by age
    num_tokens: int  # sampled ones that were trained on


@dataclass(frozen=True)
class Report:
    """The steps after the first ones, in which the rollouts get ahead."""

    steps: tuple[StepReport, ...]
    devices: Devices
    engines: EngineSeconds
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
    def token_ages(self) -> Counter[int]:
        return sum((step.token_ages for step in self.steps), Counter[int]())

    @property
    def token_staleness_mean(self) -> float:
        ages = self.token_ages
        return sum(age * count for age, count in ages.items()) / ages.total()

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(step.num_tokens for step in self.steps) / self.seconds

    @property
    def useful_fraction(self) -> float:
        """Trained tokens of all that were sampled meanwhile; near 1 but for what is dropped or begun anew."""
        return sum(step.num_tokens for step in self.steps) / self.num_sampled if self.num_sampled else 0.0

    def fraction(self, state: str) -> float:
        """Fraction of the engines' time in this state."""
        return getattr(self.engines, state) / (self.seconds * self.devices.num_engines)

    @property
    def trainer_busy_fraction(self) -> float:
        return self.train_busy_s / self.seconds

    def phase_s(self, name: str) -> float:
        return statistics.fmean(step.phases.get(name, 0.0) for step in self.steps)


def simulate(setup: Setup, num_steps: int = 8, warmup: int | None = None) -> Report:
    """`num_steps` steps after `warmup` (as many as groups may be ahead, and one). Raises Deadlock, and whatever a part
    of the run raises."""
    first = setup.bounds.max_staleness + 1 if warmup is None else warmup
    with _uncollected():
        return run_virtually(_play(setup, first, num_steps))


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


class SimulatedRollouter:
    """Plays groups by number, each by one request. `sampled` has the answers of those that nobody has taken yet."""

    def __init__(self, fleet: Fleet, workload: Workload, group_size: int):
        self._fleet, self._workload, self._size = fleet, workload, group_size
        self.sampled: dict[int, list[Answer]] = {}

    async def run_group(self, number: int) -> TrajectoryGroup:
        work = self._workload.group(number, self._size)
        prompt = np.array([number], np.int32)  # the router looks at nothing but whether it knows it
        request = GenerationRequest(f"{number}", prompt, SamplingParams(1), self._size, order=number)
        answers = await self._fleet.generate(Flight(request, work.prompt, np.maximum(work.lengths, 1).tolist()))
        self.sampled[number] = answers
        rows = tuple(_trajectory(answer, index) for index, answer in enumerate(answers))
        return TrajectoryGroup(Task(str(number), "simulated", prompt), number, rows)


def _trajectory(answer: Answer, index: int) -> Trajectory:
    facts = RowFacts(
        num_tokens=answer.context + answer.length,
        num_sampled=answer.length,
        num_turns=1,
        oldest_version=answer.versions[0][0],
    )
    content = StoredRow(None, None, 0, facts)  # nowhere
    return Trajectory(reward=0.0, finish_reason="stop", index=index, metrics={}, extra={}, content=content)


async def _play(setup: Setup, warmup: int, num_steps: int) -> Report:
    fleet = Fleet(setup.costs, setup.devices.num_engines, setup.max_running)
    rollouter = SimulatedRollouter(fleet, setup.workload, setup.group_size)
    started: dict[int, int] = {}  # version, by number

    async def play_group(number: int) -> TrajectoryGroup:
        started[number] = fleet.version
        return await rollouter.run_group(number)

    core = RolloutCore(play_group, setup.bounds)
    model = StepModel(setup, core, fleet)
    loop, steps = asyncio.get_running_loop(), list[StepReport]()

    def sums() -> tuple[float, EngineSeconds, float, float]:
        return loop.time(), fleet.seconds, model.train_busy_s, sum(engine.num_sampled for engine in fleet.engines)

    before = sums()
    for step in range(warmup + num_steps):
        if step == warmup:
            before = sums()
        model.timer.reset()
        numbers = tuple(group.group_id for group in (await model.step(step)).groups)
        token_ages: Counter[int] = Counter()
        num_tokens = 0.0
        for version, count in (
            each for n in numbers for answer in rollouter.sampled.pop(n) for each in answer.versions
        ):
            token_ages[step - version] += round(count)
            num_tokens += count
        if setup.bounds.unfinished != "carry":  # the others are gone, or start again
            rollouter.sampled.clear()
        metrics, ages = model.timer.metrics(), tuple(step - started.pop(number) for number in numbers)
        phases = phase_seconds(metrics)
        steps.append(StepReport(metrics["time/step_s"], phases, numbers, ages, token_ages, round(num_tokens)))
    seconds, engines, train_busy_s, num_sampled = sums()
    await core.cancel()
    return Report(
        steps=tuple(steps[warmup:]),
        devices=setup.devices,
        engines=engines.plus(before[1], -1),
        train_busy_s=train_busy_s - before[2],
        seconds=seconds - before[0],
        num_sampled=num_sampled - before[3],
    )
