"""`rollout_mock`: the rollouts of every step on disk, and runs that train on what another has sampled."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import ConfigError, StorageError, describe
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.types.group_codec import RecordedGroup, group_ids, read_groups, write_groups
from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup

logger = logging.getLogger(__name__)

KEY = "rollout_mock.dump_dir"


class RolloutDump(StepPart):
    """Writes `step_000012.npz`: all groups that the twelfth step sampled, with their rewards, those among them that its
    filter dropped. A step that is made again is written again."""

    def __init__(self, directory: Path):
        self._directory = directory

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, Metrics]:
        with at.timer("dump"):
            self.write(at.step + 1, groups.sampled)
        return groups, {}

    def write(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """`step`: steps done with this one. Raises StorageError where the disk does not take it."""
        rows = fetched([group.trajectories for group in groups])
        recorded = [
            RecordedGroup(group.group_id, group.task.task_id, tuple(trajectories), group.surplus, group.greedy_reward)
            for group, trajectories in zip(groups, rows, strict=True)
        ]
        path = self._directory / f"step_{step:06d}.npz"
        try:
            write_groups(path, recorded)
        except OSError as error:
            raise StorageError(f"{KEY}: {path} cannot be written: {error.strerror or error}") from error


class RecordedRollouter:
    """Gives each group as it was recorded, its task, tokens and rewards: nothing is sampled, and nothing is scored."""

    def __init__(self, config: AlgorithmConfig):
        """Raises ConfigError where there are no records, or none that can be read."""
        self._config = config
        directory = Path(config.rollout_mock.dump_dir)
        self._files: dict[int, Path] = {}
        for path in sorted(directory.glob("step_*.npz")):
            try:
                self._files |= dict.fromkeys(group_ids(path), path)
            except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
                raise ConfigError(f"{KEY}: {path} cannot be read: {error}. Dump its step again.") from error
        if not self._files:
            raise ConfigError(
                f"{KEY}: {directory} holds no rollouts (step_*.npz). Run with rollout_mock.mode: dump first, or "
                "correct the path."
            )
        self._read = lru_cache(maxsize=2)(_groups_of)
        logger.info("rollouts are those of %s: %d groups; nothing is sampled in training", directory, len(self._files))

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        path = self._files.get(group_id)
        if path is None:
            raise ConfigError(
                f"{KEY}: group {group_id}, of step {step + 1}, is not among the recorded ones ({min(self._files)} to "
                f"{max(self._files)}). Lower max_steps, or dump a run that goes on for as long, from the same step and "
                "with the same filters."
            )
        group = self._read(path)[group_id]
        self._check(path, task, group)
        return TrajectoryGroup(task, group_id, group.trajectories, group.surplus, group.greedy_reward)

    def _check(self, path: Path, task: Task, group: RecordedGroup) -> None:
        if group.task_id != task.task_id:
            raise ConfigError(
                f"{KEY}: in {path} group {group.group_id} is of task {group.task_id}, here it is of {task.task_id}. "
                "Use the data, seed and batch of the run that was dumped."
            )
        attempts, longest = (
            len({t.index for t in group.trajectories}),
            max(t.facts.num_tokens for t in group.trajectories),
        )
        size_key, most = self._config.batch_keys[1], self._config.trained_length
        if attempts != self._config.group_size:
            raise ConfigError(
                f"{size_key}: {self._config.group_size}, but groups in {path} have {attempts} attempts. Set it to that."
            )
        if longest > most:
            raise ConfigError(
                f"{' + '.join(self._config.length_keys[:2])}: {most} tokens, but a row in {path} has {longest}. Use "
                "the lengths of the run that was dumped."
            )


def _groups_of(path: Path) -> dict[int, RecordedGroup]:
    """The groups of a file by number. Raises ConfigError for one that is damaged, in its tokens, texts or pictures."""
    try:
        return {group.group_id: group for group in read_groups(path)}
    except Exception as error:  # whatever damaged content makes of it
        raise ConfigError(f"{KEY}: {path} cannot be read: {describe(error)}. Dump its step again.") from error


# `runner_state_report_interval`: what the rollout is doing, in the log every N seconds.


class RolloutReport:
    """Knows the groups that are being played. While there are any a line says so every `interval_s` seconds.
    `loads`: the answers that each engine owes, by rank."""

    def __init__(self, interval_s: float, loads: Callable[[], Mapping[int, int]]):
        self._interval_s, self._loads = interval_s, loads
        self._begun: dict[int, float] = {}  # by group, the oldest first
        self._num_ended = 0  # since the last line
        self._alarm: asyncio.TimerHandle | None = None

    def begins(self, group_id: int) -> None:
        loop = asyncio.get_running_loop()
        self._begun[group_id] = loop.time()
        if self._alarm is None:
            self._alarm = loop.call_later(self._interval_s, self._say)

    def ends(self, group_id: int) -> None:
        del self._begun[group_id]
        self._num_ended += 1

    def line(self, now: float) -> str:
        """Example: rollout: 3 groups under way, 5 ended in the last 10 s; the oldest, group 7, began 12 s ago"""
        oldest, began = next(iter(self._begun.items()))
        verb = f"{len(self._begun)} groups in flight, {self._num_ended} ended in the last {self._interval_s:g} s"
        text = f"rollout: {verb}; the oldest, group {oldest}, began {now - began:.0f} s ago"
        loads = self._loads()
        if not any(loads.values()):
            return text
        return (
            f"{text}; responses in flight by engine: {', '.join(f'{rank}: {n}' for rank, n in sorted(loads.items()))}"
        )

    def _say(self) -> None:
        self._alarm = None
        if self._begun:
            loop = asyncio.get_running_loop()
            logger.info("%s", self.line(loop.time()))
            self._alarm = loop.call_later(self._interval_s, self._say)
        self._num_ended = 0


@dataclass(frozen=True)
class ReportedRollouter:
    """A rollouter whose groups are in the report."""

    inner: Rollouter
    report: RolloutReport

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        self.report.begins(group_id)
        try:
            return await self.inner.run_group(task, group_id, step, generate)
        finally:
            self.report.ends(group_id)
