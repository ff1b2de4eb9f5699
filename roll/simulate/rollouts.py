"""One group of a simulated run: the requests of a `Rollouter`, to engines that are models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll.simulate.engine_model import Answer
from roll.simulate.fleet import Fleet, Flight
from roll.simulate.setup import Setup
from roll.simulate.workload import GroupWork
from roll.types.rollout import GenerationRequest, RowFacts, SamplingParams, StoredRow, Task, Trajectory, TrajectoryGroup
from roll.utils.background import start
from roll.utils.spans import Spans

SAMPLING, NOTHING = SamplingParams(1), {}


@dataclass(frozen=True)
class LengthSum:
    num_answers: int = 0
    num_tokens: int = 0

    @property
    def mean(self) -> float:
        return self.num_tokens / self.num_answers if self.num_answers else 0.0

    def plus(self, num_answers: int, num_tokens: int) -> LengthSum:
        return LengthSum(self.num_answers + num_answers, self.num_tokens + num_tokens)

    def less(self, other: LengthSum) -> LengthSum:
        return self.plus(-other.num_answers, -other.num_tokens)


class SimulatedRollouter:
    """Plays groups by number. `sampled` has the answers of those that nobody has taken yet."""

    def __init__(self, fleet: Fleet, setup: Setup, spans: Spans):
        self._fleet, self._workload, self._size, self._spans = fleet, setup.workload, setup.group_size, spans
        self._room = None if setup.reward_workers is None else asyncio.Semaphore(setup.reward_workers)
        self.sampled: dict[int, list[Answer]] = {}
        self.started = LengthSum()
        self._next = 0

    async def run_group(self, number: int) -> TrajectoryGroup:
        work = self._workload.group(number, self._size)
        if number >= self._next:  # else it starts again
            self._next = number + 1
            self.started = self.started.plus(self._size, int(work.lengths.sum()))
        if work.lengths.shape[1] == 1:
            attempts = [[answer] for answer in await self._answers(number, work)]
        else:
            attempts = await asyncio.gather(*(self._episode(number, work, row) for row in range(self._size)))
        self.sampled[number] = [answer for attempt in attempts for answer in attempt]
        self._spans.mark(number, "scored")
        task = Task(str(number), "simulated", _prompt(number))
        rewards = work.rewards.tolist()
        rows = tuple(_trajectory(work.prompt, attempt, rewards[i], i) for i, attempt in enumerate(attempts))
        return TrajectoryGroup(task, number, rows)

    async def _answers(self, number: int, work: GroupWork) -> list[Answer]:
        """A group of single turns is one request; each answer is rewarded as soon as it is there."""
        scoring: list[asyncio.Task[None]] = []
        delays = work.delays_s[:, 0].tolist()

        def answered(index: int, answer: Answer) -> None:
            scoring.append(start(self._wait(delays[index])))

        flight = Flight(
            _request(number, f"{number}", self._size),
            work.prompt,
            work.prompt,
            np.maximum(work.lengths[:, 0], 1).tolist(),
            answered if any(delays) else None,
        )
        try:
            answers = await self._fleet.generate(flight)
            self._spans.mark(number, "generated")
            await asyncio.gather(*scoring)
        finally:
            for task in scoring:
                task.cancel()
        return answers

    async def _episode(self, number: int, work: GroupWork, row: int) -> list[Answer]:
        """One request per turn, which begins with all before it; the environment takes its time after each."""
        answers: list[Answer] = []
        context = new = work.prompt
        for length, delay in zip(work.lengths[row].tolist(), work.delays_s[row].tolist(), strict=True):
            if not length and answers:
                break
            request = _request(number, f"{number}-{row}-{len(answers)}", 1, session=f"{number}-{row}")
            answers += await self._fleet.generate(Flight(request, context, new, [max(1, length)]))
            await self._wait(delay)
            context += length + work.observation
            new = work.observation
        return answers

    async def _wait(self, seconds: float) -> None:
        if not seconds:
            return
        if self._room is None:
            await asyncio.sleep(seconds)
            return
        async with self._room:
            await asyncio.sleep(seconds)


def _prompt(number: int) -> np.ndarray:
    """Stands for the prompt: the router looks at nothing but whether it knows it."""
    return np.array([number], np.int32)


def _request(number: int, name: str, num_samples: int, session: str = "") -> GenerationRequest:
    return GenerationRequest(name, _prompt(number), SAMPLING, num_samples, session, order=number)


def _trajectory(prompt: int, answers: Sequence[Answer], reward: float, index: int) -> Trajectory:
    sampled = sum(answer.length for answer in answers)
    oldest = min(answer.versions[0][0] for answer in answers)
    num_tokens = answers[-1].context + answers[-1].length
    facts = RowFacts(num_tokens=num_tokens, num_sampled=sampled, num_turns=len(answers), oldest_version=oldest)
    content = StoredRow(None, None, 0, facts)  # nowhere
    return Trajectory(reward=reward, finish_reason="stop", index=index, metrics=NOTHING, extra=NOTHING, content=content)
