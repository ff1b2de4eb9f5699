"""Modes of a process of reinforcement learning: it does the whole run, or a part. It samples for a trainer elsewhere
(explore), trains on what is sampled elsewhere (train), or measures what a run has saved (bench)."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, ClassVar, TypeVar

from roll.configs.plan.batch_plan import BatchPlan, oldest_allowed
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import ConfigError, StorageError
from roll.rl.experience.directory import DirectoryBuffer
from roll.rl.experience.explorer import Explorer, Progress, StreamingRollouter
from roll.rl.experience.reader import ExperienceReader, ReadGroups, Reading, Reuse
from roll.rl.parts import GroupSource
from roll.rl.publishing import FolderPublisher, FolderReader, Publisher
from roll.run.loop import RunMode, measures_after
from roll.run.saving.checkpoint import HF_MODEL, Checkpoint, CheckpointStore
from roll.run.tracking.local import METRICS_FILE, MetricHistory
from roll.types.rollout import Rollouter

# A run in two processes: weights in one direction, groups in the other.
#
#     explorer (mode: explore)                       trainer (mode: train)
#     ---------------------------------------------------------------------------
#     groups of step s, rewarded ----- buffer -----> step s trains on them
#     engines read version v <----- weight folder -- writes version v
#
# The explorer samples the groups of step s under the version that one process would have then, so what a step trains on
# is the same. It has no state but the buffer: which groups there have been.


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


logger = logging.getLogger(__name__)
C = TypeVar("C", bound=AlgorithmConfig)


class RLMode(RunMode):
    """A process that samples, trains and measures (`mode: both`). Others override what they do in another way."""

    hands_over: ClassVar[bool] = False
    """True if another process trains on what this one samples."""

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        """`is_stopped`: True once the run is to end, so that nothing is waited for any more."""
        self.config, self.is_stopped = config, is_stopped
        self._lock: ProcessLock | None = None  # at the buffer
        self._buffer: DirectoryBuffer | None = None

    @property
    def buffer(self) -> DirectoryBuffer:
        """The buffer between the processes of a run in parts, once it is open."""
        assert self._buffer is not None
        return self._buffer

    def open(self) -> None:
        """Opens the buffer of a run in parts. Raises StorageError where that fails, or another process does the same
        part."""
        if self.config.is_in_parts:
            self._lock = ProcessLock(Path(self.config.experience_dir), self.config.mode)
            self._buffer = make_buffer(self.config)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.leave()

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan, checkpoint: Checkpoint | None) -> AlgorithmConfig:
        """Return the settings to use from here on; called once data and length of the run are known."""
        return config

    def publisher(self, config: AlgorithmConfig) -> Publisher:
        """Brings trained weights to the engines, or to the other process."""
        return Publisher(config.actor_train.model_update_frequency, config.is_async)

    def source(self, filters: bool) -> GroupSource | None:
        """Groups of another process; None where this one samples. `filters`: some of them are dropped."""
        return None

    def rollouter(self, rollouter: Rollouter, is_settled: bool) -> Rollouter:
        """Return the rollouter that makes the groups. `is_settled`: groups are used as they are sampled, with no later
        decision about them."""
        return rollouter

    def begin(self, steps_done: int, source: GroupSource | None, history: MetricHistory) -> None:
        """Brings groups and metrics to where the steps begin, if no checkpoint does."""

    def hand_over(self, step: int, groups: StepGroups) -> None:
        """Gives the groups of a step to the process that trains."""
        raise NotImplementedError


class ExploreMode(RLMode):
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


class TrainMode(RLMode):
    """Trains on the groups of an explorer elsewhere, and writes weights for it."""

    def publisher(self, config: AlgorithmConfig) -> Publisher:
        return FolderPublisher(config)

    def source(self, filters: bool) -> GroupSource:
        return ReadGroups(make_reader(self.config, self.buffer, self.is_stopped), filters)

    def begin(self, steps_done: int, source: GroupSource | None, history: MetricHistory) -> None:
        assert source is not None
        source.restore(Path(self.config.output_dir), None, steps_done)


class BenchMode(RLMode):
    """Measures a model, or the policy of a checkpoint, and ends."""

    takes_steps = False
    saves = False

    def find_checkpoint(self, store: CheckpointStore, resume_from: bool | str) -> Checkpoint | None:
        return checkpoint_to_measure(store, resume_from)

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan, checkpoint: Checkpoint | None) -> AlgorithmConfig:
        return config if checkpoint is None else of_checkpoint(config, checkpoint)

    def show(self, metrics: Mapping[str, float]) -> None:
        for line in summary_lines(metrics):
            logger.info("%s", line)


MODES: Mapping[str, type[RLMode]] = {"both": RLMode, "explore": ExploreMode, "train": TrainMode, "bench": BenchMode}
"""Modes by the value of `mode`."""


def checkpoint_to_measure(store: CheckpointStore, resume_from_checkpoint: bool | str) -> Checkpoint | None:
    """Return the checkpoint to measure; None: the model that the YAML names. The store is that of another run, which
    may be under way: nothing is removed from it. Raises ConfigError where there is no such checkpoint."""
    if not resume_from_checkpoint:
        return None
    checkpoint = store.resolve(resume_from_checkpoint, cleans=False)
    if checkpoint is None:
        raise ConfigError(
            f"resume_from_checkpoint: there is no checkpoint in {store.directory} to measure. Name one, or set it to "
            "false for the model of actor_infer."
        )
    return checkpoint


def of_checkpoint(config: C, checkpoint: Checkpoint) -> C:
    """The settings of a run whose engines start with the policy of a checkpoint. Raises ConfigError for one without
    its hf_model."""
    model = checkpoint.path / HF_MODEL
    if not (model / "config.json").is_file():
        raise ConfigError(f"resume_from_checkpoint: {checkpoint.path} holds no {HF_MODEL} to measure.")
    engines = config.actor_infer
    tokenizer = engines.model_args.tokenizer_path or engines.model_args.model_name_or_path
    args = {"model_name_or_path": str(model), "tokenizer_path": tokenizer}
    changed = engines.model_copy(update={"model_args": engines.model_args.model_copy(update=args)})
    return config.model_copy(update={"actor_infer": changed})


def summary_lines(metrics: Mapping[str, float]) -> Iterator[str]:
    """The figures as lines."""
    width = max(map(len, metrics), default=0)
    yield from (f"{name:<{width}}  {value:.4f}" for name, value in metrics.items())
