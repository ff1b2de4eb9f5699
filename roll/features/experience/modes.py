"""Modes of a run in two processes: one samples for a trainer elsewhere, one trains on what is sampled elsewhere."""

import fcntl
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from roll.configs.plan.batch_plan import BatchPlan, oldest_allowed
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import StorageError
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.explorer import Explorer, Progress, StreamingRollouter
from roll.features.experience.reader import ExperienceReader, ReadGroups, Reading, Reuse
from roll.features.experience.rows import check_tasks
from roll.features.experience.weights import FolderPublisher, FolderReader
from roll.rl.mode import RLMode
from roll.rl.parts import GroupSource
from roll.rl.publishing import Publisher
from roll.run.loop import measures_after
from roll.run.saving.checkpoint import Checkpoint, CheckpointStore
from roll.run.tracking.local import METRICS_FILE, MetricHistory
from roll.types.rollout import Rollouter, Task

# Weights in one direction, groups in the other.
#
#     explorer (mode: explore)                       trainer (mode: train)
#     ---------------------------------------------------------------------------
#     groups of step s, rewarded ----- buffer -----> step s trains on them
#     engines read version v <----- weight folder -- writes version v
#
# The explorer samples the groups of step s under the version that one process would have then, so what a step trains on
# is the same. It has no state but the buffer: which groups there have been.


logger = logging.getLogger(__name__)


def make_buffer(config: AlgorithmConfig) -> DirectoryBuffer:
    """The buffer of `experience`. Raises StorageError where it cannot be opened."""
    return DirectoryBuffer(Path(config.experience_dir), config.experience.keep)


def make_reader(config: AlgorithmConfig, buffer: DirectoryBuffer, is_stopped: Callable[[], bool]) -> ExperienceReader:
    keys = config.experience
    reuse = Reuse(keys.reuse, config.seed) if keys.reuse.enable else None
    return ExperienceReader(buffer, Reading(keys, config.num_groups, oldest_allowed(config)), reuse, is_stopped)


# One explorer and one trainer at a buffer: each holds its lock for as long as it lives.


class ProcessLock:
    """A lock on `<experience.dir>/<mode>.lock`, which the kernel takes back when the process ends, however it ends.
    Two writers would give one number twice, and two readers release each other's groups."""

    def __init__(self, directory: Path, mode: str):
        """Raises StorageError where another process has it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (directory / f"{mode}.lock").open("a")
        except OSError as error:
            raise StorageError(f"experience.dir: {directory} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise StorageError(
                f"experience.dir: another process with mode: {mode} is running in {directory}. Wait for its end, or "
                "give this run another experience.dir."
            ) from error
        except OSError:  # a file system without locks
            pass

    def leave(self) -> None:
        self._file.close()


class _PartMode(RLMode):
    """A process at the buffer of `experience`."""

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        super().__init__(config, is_stopped)
        self._lock: ProcessLock | None = None  # at the buffer
        self._buffer: DirectoryBuffer | None = None

    @property
    def buffer(self) -> DirectoryBuffer:
        """The buffer between the processes, once it is open."""
        assert self._buffer is not None
        return self._buffer

    def open(self) -> None:
        """Raises StorageError where the buffer cannot be opened, or another process does the same part."""
        self._lock = ProcessLock(Path(self.config.experience_dir), self.config.mode)
        self._buffer = make_buffer(self.config)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.leave()

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        check_tasks(tasks)


class ExploreMode(_PartMode):
    """Samples for a trainer elsewhere. What it goes on from is in the buffer; it has no checkpoints."""

    hands_over = True
    saves = False

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        super().__init__(config, is_stopped)
        self._explorer: Explorer | None = None

    @property
    def explorer(self) -> Explorer:
        """The writer of the buffer, once it is prepared."""
        assert self._explorer is not None
        return self._explorer

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan, checkpoint: Checkpoint | None) -> AlgorithmConfig:
        self._explorer = Explorer(self.buffer, plan.num_groups, plan.bounds.is_in_order)
        return config

    def find_checkpoint(self, store: CheckpointStore, resume_from: bool | str) -> Checkpoint | None:
        return None

    def steps_done(self, checkpoint: Checkpoint | None) -> int:
        return Progress.of(self.buffer).steps_done

    def publisher(self, config: AlgorithmConfig) -> Publisher:
        return FolderReader(config, self.is_stopped)

    def rollouter(self, rollouter: Rollouter, is_settled: bool) -> Rollouter:
        return StreamingRollouter(rollouter, self.explorer) if is_settled else rollouter

    def begin(self, steps_done: int, source: GroupSource | None, history: MetricHistory) -> None:
        assert source is not None
        progress = Progress.of(self.buffer)
        if progress.steps_done:
            logger.info("going on after %d steps that are in the buffer", progress.steps_done)
            history.load(Path(self.config.logging_dir) / METRICS_FILE, last=steps_done)
        source.restore(Path(self.config.output_dir), progress.groups(), steps_done)

    def measures_first(self, config: RunConfig, steps_done: int, history: MetricHistory) -> bool:
        """An explorer that was killed between the groups of a step and its row makes up for that step's evaluation."""
        if steps_done == 0:
            return super().measures_first(config, steps_done, history)
        return measures_after(config, steps_done) and steps_done not in dict(history.rows)

    def hand_over(self, step: int, groups: StepGroups) -> None:
        self.explorer.write_step(step, groups)


class TrainMode(_PartMode):
    """Trains on the groups of an explorer elsewhere, and writes weights for it."""

    def publisher(self, config: AlgorithmConfig) -> Publisher:
        return FolderPublisher(config)

    def source(self, filters: bool) -> GroupSource:
        return ReadGroups(make_reader(self.config, self.buffer, self.is_stopped), filters)

    def begin(self, steps_done: int, source: GroupSource | None, history: MetricHistory) -> None:
        assert source is not None
        source.restore(Path(self.config.output_dir), None, steps_done)
