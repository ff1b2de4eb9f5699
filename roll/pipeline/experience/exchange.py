"""A run in two processes: weights in one direction, groups in the other.

    explorer (mode: explore)                       trainer (mode: train)
    ---------------------------------------------------------------------------
    groups of step s, rewarded ----- buffer -----> step s trains on them
    engines read version v <----- weight folder -- writes version v

The explorer samples the groups of step s under the version that one process would have then, so what a step trains on
is the same. It has no state but the buffer: which groups there have been.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.plan.rollout_bounds import oldest_allowed
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import ConfigError
from roll.pipeline.checkpoint import HF_MODEL, CheckpointStore
from roll.pipeline.experience.buffer import Buffer
from roll.pipeline.experience.directory import DirectoryBuffer
from roll.pipeline.experience.reader import ExperienceReader, Reading
from roll.pipeline.experience.reuse import Reuse
from roll.pipeline.experience.rows import FORMS, Experience
from roll.pipeline.experience.sql import AlchemyDatabase, SqlBuffer, SqliteDatabase
from roll.pipeline.interrupts import StepGivenUp
from roll.pipeline.manifest import read_manifest
from roll.pipeline.publishing import Publisher
from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_SAY_S = 60.0


def make_buffer(config: AlgorithmConfig) -> Buffer:
    """The buffer of `experience`. Raises StorageError where it cannot be opened."""
    keys, directory = config.experience, Path(config.experience_dir)
    match keys.storage_type:
        case "queue":
            return DirectoryBuffer(directory, FORMS["npz"], keys.keep)
        case "file":
            return DirectoryBuffer(directory, FORMS[keys.format], keys.keep)
        case "sql":
            if not keys.is_local_sql:
                return SqlBuffer(AlchemyDatabase(str(keys.url)), FORMS["npz"], keys.keep)
            file = Path(keys.url.partition("///")[2]) if keys.url else directory / "experience.db"
            return SqlBuffer(SqliteDatabase(file), FORMS["npz"], keys.keep)


def make_reader(config: AlgorithmConfig, buffer: Buffer, is_stopped: Callable[[], bool]) -> ExperienceReader:
    keys = config.experience
    reuse = Reuse(keys.reuse, config.seed) if keys.reuse.enable else None
    return ExperienceReader(buffer, Reading(keys, config.num_groups, oldest_allowed(config)), reuse, is_stopped)


class WeightFolder:
    """`<experience.dir>/weights/step_000012/hf_model`: the policy of version 12, published whole or not at all."""

    def __init__(self, config: AlgorithmConfig):
        directory = Path(config.experience_dir) / "weights"
        self._store = CheckpointStore(directory, config.experience.keep_weights)

    def write(self, version: int, save: Callable[[Path], object]) -> None:
        with self._store.writing(version) as directory:
            save(directory / HF_MODEL)

    def newest(self, at_least: int) -> tuple[int, Path] | None:
        """(version, directory of the model): the newest that is whole and no older than this version."""
        for path in self._store.newest_first():
            try:
                version = read_manifest(path).step
            except ConfigError:  # it was removed meanwhile
                continue
            if version >= at_least:
                return version, path / HF_MODEL
        return None

    def wait(self, at_least: int, is_stopped: Callable[[], bool]) -> tuple[int, Path]:
        """The same, once there is one. Raises StepGivenUp when the run is to end meanwhile."""
        said = time.monotonic()
        while (found := self.newest(at_least)) is None:
            if is_stopped():
                raise StepGivenUp
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                logger.info("waiting for weights of version %d from the trainer (mode: train)", at_least)
            time.sleep(_POLL_S)
        return found


class FolderPublisher(Publisher):
    """Of the trainer: weights go to the folder, where the explorer finds them."""

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config.actor_train.model_update_frequency, config.runs_ahead)
        self._folder = WeightFolder(config)

    def engines_wait(self, clusters: RLClusters) -> bool:
        return False

    def send(self, clusters: RLClusters, version: int) -> int:
        with clusters.placement.hold(clusters.actor_train.everything):
            self._folder.write(version, clusters.actor_train.save_hf_model)
        self.engine_version = version
        return 0


class FolderReader(Publisher):
    """Of the explorer: the engines read the weights that one process would have sent by then, or newer ones."""

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        super().__init__(config.actor_train.model_update_frequency, config.runs_ahead)
        self._folder, self._is_stopped = WeightFolder(config), is_stopped
        self._last = config.max_steps

    def send(self, clusters: RLClusters, version: int) -> int:
        """Version 0 is what the engines start with. Theirs never goes back, also where the trainer has gone on from an
        earlier checkpoint and writes versions again that there have been."""
        needed = version if version == self._last else version // self._frequency * self._frequency
        lasts = self.engine_version >= needed and not self.engines_wait(clusters)
        newer = self._folder.newest(max(needed, self.engine_version + lasts))
        if newer is None and lasts:
            return 0
        found, model = newer or self._folder.wait(max(needed, self.engine_version), self._is_stopped)
        with clusters.placement.hold(clusters.actor_infer.weights):
            sent_bytes = clusters.read_weights(model, found)
        self.engine_version = found
        return sent_bytes


@dataclass(frozen=True)
class Progress:
    """How far an explorer is: whole steps, and the groups that none of them took, though later ones were."""

    steps_done: int
    next_number: int
    missing: tuple[int, ...]

    @classmethod
    def of(cls, buffer: Buffer) -> Progress:
        """Example: steps with the groups 0 1 3 and 4 2 5 leave nothing; without the second one, 2 is missing."""
        finished = buffer.finished()
        taken = frozenset().union(*finished)
        next_number = max(taken, default=-1) + 1
        return cls(len(finished), next_number, tuple(sorted(frozenset(range(next_number)) - taken)))

    def groups(self) -> dict[str, Any]:
        """As a scheduler takes it up (`RolloutScheduler.restore`): what is missing comes first, under its number."""
        active = [[number, self.steps_done] for number in self.missing]
        return {"place": 0, "next": self.next_number, "active": active}


class Explorer:
    """What an explorer does with its groups."""

    def __init__(self, buffer: Buffer, num_groups: int, is_in_order: bool):
        """`is_in_order`: the numbers of a step are known before it is sampled, so it is simply sampled again where it
        is not whole. Otherwise its groups are there all at once or not at all: if they are, it is over."""
        self.buffer = buffer
        self._num_groups = num_groups
        buffer.recover()
        if not is_in_order:
            step = len(buffer.finished())
            if numbers := [entry.number for entry in buffer.entries() if entry.step == step]:
                buffer.finish(step, numbers)

    def hand_over(self, step: int, groups: StepGroups) -> None:
        """All groups of a step: they are on the disk when it returns."""
        kept = {group.group_id for group in groups.kept}
        whole = with_tokens(groups.sampled)
        self.buffer.write([Experience(step, group, group.group_id in kept) for group in whole])
        self.buffer.finish(step, [group.group_id for group in whole])

    async def hand_over_early(self, group: TrajectoryGroup) -> None:
        """A group whose step its number tells, and about which nothing more is decided."""
        await asyncio.to_thread(self._write_early, group)

    def _write_early(self, group: TrajectoryGroup) -> None:
        (whole,) = with_tokens([group])
        self.buffer.write([Experience(group.group_id // self._num_groups, whole)])


@dataclass(frozen=True)
class EarlyRollouter:
    """Hands over each group as soon as it is there, so that a trainer that does not wait for all (`on_timeout:
    partial`) sees it, and nothing that was sampled is lost with the explorer."""

    rollouter: Rollouter
    explorer: Explorer

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        group = await self.rollouter.run_group(task, group_id, step, generate)
        await self.explorer.hand_over_early(group)
        return group


def with_tokens(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    rows = fetched([group.trajectories for group in groups])
    return [
        TrajectoryGroup(group.task, group.group_id, tuple(found), group.surplus)
        for group, found in zip(groups, rows, strict=True)
    ]
