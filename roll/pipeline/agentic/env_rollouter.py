"""The agentic rollout: a group is several episodes in environments with the same seed."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.pipeline.agentic.env_manager.episode import EpisodeJob, Purpose
from roll.types.rollout import AnyTrajectory, Generate, Task, TrajectoryGroup
from roll.utils.background import start

Play = Callable[[EpisodeJob], Coroutine[Any, Any, Sequence[AnyTrajectory]]]


@dataclass
class EnvTaskSource:
    """The endless stream of environments: task g has the tag of slot g modulo the slots, and a seed of its own."""

    slots: Sequence[str]
    seeds: tuple[int, int]
    seed: int
    position: int = 0

    def next_tasks(self, count: int) -> list[Task]:
        tasks = [self.task(self.position + i, self._random_seed(self.position + i)) for i in range(count)]
        self.position += count
        return tasks

    def fixed_tasks(self, count: int) -> list[Task]:
        """The first environments of the range, the same whatever the run's seed is: for validation."""
        first, last = self.seeds
        return [self.task(i, first + i % (last - first)) for i in range(count)]

    def task(self, place: int, env_seed: int) -> Task:
        tag = self.slots[place % len(self.slots)]
        return Task(f"{tag}-{env_seed}", tag, np.zeros(0, np.int32), payload={"env_seed": env_seed, "tag": tag})

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])

    def _random_seed(self, place: int) -> int:
        first, last = self.seeds
        message = struct.pack("<qq", self.seed, place) + b"env"
        return first + int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little") % (last - first)


@dataclass
class EnvRollouter:
    """Plays `group_size` episodes of a task, `redundancy` more to choose from: the first that finish without failure
    count, the rest is stopped."""

    play: Play
    group_size: int
    redundancy: int = 0
    purpose: Purpose = "train"

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        """The episodes sample by a way of their own, from where they are played; `generate` is not used."""
        jobs = [
            EpisodeJob(task.domain, int(str(task.payload["env_seed"])), self.purpose, group_id, index)
            for index in range(self.group_size + self.redundancy)
        ]
        attempts = await self._first_to_finish(jobs)
        return TrajectoryGroup(task, group_id, tuple(row for rows in attempts for row in rows))

    async def _first_to_finish(self, jobs: Sequence[EpisodeJob]) -> list[Sequence[AnyTrajectory]]:
        running = {start(self.play(job)) for job in jobs}
        good: list[Sequence[AnyTrajectory]] = []
        failed: list[Sequence[AnyTrajectory]] = []
        try:
            while running and len(good) < self.group_size:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for rows in [episode.result() for episode in done]:
                    (failed if rows[0].failure else good).append(rows)
        finally:
            for episode in running:
                episode.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        good.sort(key=lambda rows: rows[0].index)
        failed.sort(key=lambda rows: rows[0].index)
        return (good + failed)[: self.group_size]
