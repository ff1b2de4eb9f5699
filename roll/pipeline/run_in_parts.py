"""What is another where a process has a part of a run: it samples for a trainer elsewhere (`mode: explore`), trains on
what is sampled elsewhere (`train`), or measures what a run has saved (`bench`)."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.pipeline.bench import checkpoint_to_measure, of_checkpoint, told
from roll.pipeline.experience.buffer import Buffer
from roll.pipeline.experience.exchange import make_buffer, make_reader
from roll.pipeline.experience.explorer import Explorer, Progress
from roll.pipeline.experience.read_groups import ReadGroups
from roll.pipeline.experience.seat import Seat
from roll.pipeline.experience.weights import FolderPublisher, FolderReader
from roll.pipeline.parts import GroupSource, StepContext, StepParts
from roll.pipeline.publishing import Publisher
from roll.pipeline.run import Row, Run
from roll.pipeline.saving.checkpoint import Checkpoint
from roll.pipeline.tracking.local import METRICS_FILE, read_metrics
from roll.types.rollout import TrajectoryGroup

logger = logging.getLogger(__name__)


class RunInParts(Run):
    """A run of reinforcement learning, or the part of it that this process has. `RLPipeline` is its step."""

    config: AlgorithmConfig
    parts: StepParts

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan):
        super().__init__(config)
        self.plan = plan
        self.publisher = self.make_publisher()
        self.scheduler: GroupSource | None = None  # there once it is built
        self.seat: Seat | None = None  # at the buffer
        self.buffer: Buffer | None = None  # between the processes of a run in parts
        self.explorer: Explorer | None = None  # in mode explore

    @property
    @abstractmethod
    def running(self) -> RLClusters:
        """The clusters, once they are built."""

    @property
    def group_source(self) -> GroupSource:
        """Whatever gives the steps their groups, once it is built."""
        assert self.scheduler is not None
        return self.scheduler

    @abstractmethod
    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        """Records a few of the step's groups, and gives the metrics of its rollouts."""

    def make_publisher(self) -> Publisher:
        """Brings weights to the engines, or to the other part."""
        config = self.config
        if not config.is_in_parts:
            return Publisher(config.actor_train.model_update_frequency, config.runs_ahead)
        return FolderPublisher(config) if config.learns else FolderReader(config, lambda: self.interrupts.requested)

    def open_buffer(self) -> None:
        """Raises StorageError where it cannot be opened, or another process does the same part."""
        if self.config.is_in_parts:
            self.seat = Seat(Path(self.config.experience_dir), self.config.mode)
            self.buffer = make_buffer(self.config)

    def prepare_part(self, checkpoint: Checkpoint | None) -> None:
        """Of a process that does not learn."""
        if self.buffer is not None:
            self.explorer = Explorer(self.buffer, self.plan.num_groups, self.plan.bounds.is_in_order)
            self.publisher = self.make_publisher()  # the length of the run is known now
        elif checkpoint is not None:
            self.config = of_checkpoint(self.config, checkpoint)

    def close_buffer(self) -> None:
        if self.buffer is not None:
            self.buffer.close()
        if self.seat is not None:
            self.seat.leave()

    def find_checkpoint(self) -> Checkpoint | None:
        if self.config.learns:
            return super().find_checkpoint()
        if self.config.explores:  # what it goes on from is in the buffer
            return None
        return checkpoint_to_measure(self.checkpoints, self.config.resume_from_checkpoint)

    def begins_at(self, checkpoint: Checkpoint | None) -> int:
        if self.explorer is None:
            return super().begins_at(checkpoint)
        return Progress.of(self.explorer.buffer).steps_done

    @abstractmethod
    def keep(self) -> Keep | None:
        """Which groups are worth training on; None: all."""

    def read_groups(self) -> ReadGroups:
        """What makes the groups where another process samples them."""
        assert self.buffer is not None
        reader = make_reader(self.config, self.buffer, lambda: self.interrupts.requested)
        return ReadGroups(reader, filters=self.keep() is not None)

    def begin(self, steps_done: int) -> None:
        if not self.config.is_in_parts:
            return
        if self.config.learns:
            self.group_source.restore(self.output_dir, None, steps_done)
        elif self.explorer is not None:
            progress = Progress.of(self.explorer.buffer)
            if progress.steps_done:
                logger.info("going on after %d steps that are in the buffer", progress.steps_done)
                rows = read_metrics(Path(self.config.logging_dir) / METRICS_FILE)
                self._rows = [(step, metrics) for step, metrics in rows if step <= steps_done]
            self.group_source.restore(self.output_dir, progress.groups(), steps_done)
            self.publisher.send(self.running, steps_done)
            self.group_source.published(steps_done)

    def measures_first(self, steps_done: int) -> bool:
        """An explorer that was killed between the groups of a step and its row makes up for that step's evaluation."""
        if self.explorer is None or steps_done == 0:
            return super().measures_first(steps_done)
        return self.measures_after(steps_done) and steps_done not in dict(self._rows)

    def _loop(self, steps_done: int) -> Iterator[Row]:
        if self.config.takes_steps:
            yield from super()._loop(steps_done)
            return
        metrics = self.evaluate(steps_done)
        self._rows.append((steps_done, metrics))
        self._report()
        for line in told(metrics):
            logger.info("%s", line)

    def hand_over(self, explorer: Explorer, at: StepContext, groups: StepGroups) -> dict[str, float]:
        """Ends a step that is trained on elsewhere. The weights that come out of it are waited for."""
        with self.timer("hand_over"):
            explorer.hand_over(at.step, groups)
        metrics = self.report(groups, groups.kept, at.step)
        self.parts.before_publish(at, metrics)
        self.account.ask()
        return metrics | self.publish(at.step)

    def publish(self, step: int) -> dict[str, float]:
        """The weights go to the engines, where they are due. Returns metrics."""
        is_last = step + 1 == self.config.max_steps
        with self.timer("weight_sync"):
            if is_last and not self.config.learns and self.config.eval_steps <= 0:  # nobody asks the engines any more
                return {}
            return self.publisher.publish(self.running, self.group_source, step + 1, is_last)

    def _save(self, steps_done: int) -> None:
        if self.config.learns:  # the state of an explorer is its buffer
            super()._save(steps_done)

    def checkpoint_saved(self, steps_done: int) -> None:
        self.group_source.saved(steps_done)
