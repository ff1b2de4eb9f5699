"""The agentic rollout: a group is several episodes in environments with the same seed."""

import asyncio
import hashlib
import struct
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roll.pipeline.agentic.episode import TRAINING, AbortedEpisode, EpisodeJob
from roll.types.rollout import Generate, Task, Trajectory, TrajectoryGroup
from roll.utils.background import start

Played = Sequence[Trajectory] | AbortedEpisode | None
"""The rows of an episode; of one that was stopped what is known of it, None if it had not begun."""
Play = Callable[[EpisodeJob], Coroutine[Any, Any, Played]]
Length = tuple[int, bool]
"""Tokens of an episode, and whether it had come to its end."""
_STOP_LIMIT_S = 5.0  # an environment may keep its whole process busy


@dataclass
class EnvTaskSource:
    """The endless stream of environments: task g has the tag of slot g modulo the slots, and a seed of its own."""

    slots: Sequence[str]
    seeds: tuple[int, int]
    seed: int
    position: int = 0

    def next_tasks(self, count: int) -> list[Task]:
        first, last = self.seeds
        tasks = []
        for place in range(self.position, self.position + count):
            digest = hashlib.blake2b(struct.pack("<qq", self.seed, place) + b"env", digest_size=8).digest()
            tasks.append(self.task(place, first + int.from_bytes(digest, "little") % (last - first)))
        self.position += count
        return tasks

    def fixed_tasks(self, count: int) -> list[Task]:
        """Return tasks for validation: the first environments of the range, whatever the run's seed is."""
        first, last = self.seeds
        return [self.task(i, first + i % (last - first)) for i in range(count)]

    def task(self, place: int, env_seed: int) -> Task:
        tag = self.slots[place % len(self.slots)]
        return Task(f"{tag}-{env_seed}", tag, np.zeros(0, np.int32), payload={"env_seed": env_seed, "tag": tag})

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])


@dataclass
class EnvRollouter:
    """Plays `group_size` episodes of a task, `redundancy` more to choose from: the first that finish without failure
    count, the rest is stopped. `stop` has `play` return soon."""

    play: Play
    stop: Callable[[EpisodeJob], None]
    group_size: int
    redundancy: int = 0
    purpose: str = TRAINING
    _cut: list[Length] = field(default_factory=list)

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        """The episodes sample by a way of their own, from where they are played; `generate` is not used."""
        jobs = [
            EpisodeJob(task.domain, int(str(task.payload["env_seed"])), self.purpose, group_id, index)
            for index in range(self.group_size + self.redundancy)
        ]
        attempts, surplus = await self._first_to_finish(jobs)
        return TrajectoryGroup(task, group_id, tuple(row for rows in attempts for row in rows), tuple(surplus))

    async def take_cut(self) -> list[Length]:
        """Lengths of the begun episodes of groups that were cancelled since the last call."""
        cut, self._cut = self._cut, []
        return cut

    async def _first_to_finish(self, jobs: Sequence[EpisodeJob]) -> tuple[list[Sequence[Trajectory]], list[Length]]:
        """The attempts, and how long the others were when they were stopped."""
        running = {start(self.play(job)): job for job in jobs}
        good: list[Sequence[Trajectory]] = []
        failed: list[Sequence[Trajectory]] = []
        try:
            while running and len(good) < self.group_size:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for episode in done:
                    del running[episode]
                    rows = episode.result()
                    assert isinstance(rows, Sequence), "only this stops an episode"
                    (failed if rows[0].failure else good).append(rows)
            good.sort(key=lambda rows: rows[0].index)
            surplus = lengths_of(good[self.group_size :]) + await self._stopped(running)
        except asyncio.CancelledError:
            try:
                lengths = lengths_of(good) + await self._stopped(running)
            finally:
                await _cancelled(running)
            self._cut += lengths  # which `take_cut` may have emptied meanwhile
            raise
        except BaseException:
            await _cancelled(running)
            raise
        failed.sort(key=lambda rows: rows[0].index)
        return (good + failed)[: self.group_size], surplus

    async def _stopped(self, running: Mapping[asyncio.Task[Played], EpisodeJob]) -> list[Length]:
        """Ends these episodes; how long those are whose process says so soon."""
        if not running:
            return []
        for job in running.values():
            self.stop(job)
        ended, late = await asyncio.wait(running, timeout=_STOP_LIMIT_S)
        await _cancelled(late)
        whole = (episode for episode in ended if not episode.cancelled() and episode.exception() is None)
        return lengths_of(episode.result() for episode in whole)


async def _cancelled(running: Iterable[asyncio.Task[Played]]) -> None:
    for episode in running:
        episode.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def lengths_of(episodes: Iterable[Played]) -> list[Length]:
    """Lengths of the episodes that had begun and did not fail."""
    lengths: list[Length] = []
    for played in episodes:
        if isinstance(played, AbortedEpisode):
            lengths.append((played.num_tokens, False))
        elif played is not None and not played[0].failure:
            lengths.append((sum(row.facts.num_sampled for row in played), True))
    return lengths
