"""What a step leaves for people to look at: its recorded rollouts on disk and in trackers, the logging board."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.scores import ScoreSet
from roll.distributed.executor.step_rows import texts_of
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.rl.records.logging_board import LoggingBoard
from roll.rl.records.recorder import RecordLimits, RolloutRecorder, rollout_records
from roll.rl.records.token_records import TokenRecords
from roll.rl.records.tracked_samples import tracked_samples
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.tracking.tracker import TrackedSample
from roll.types.rollout import TrajectoryGroup
from roll.utils.timing import Timer

Track = Callable[[int, str, Sequence[TrackedSample]], None]
"""Gives samples of a step to the trackers: steps done, kind, samples."""


class StepRecords(StepPart):
    """`board` is there where the run has one."""

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan, track: Track):
        self._config, self._plan, self._track = config, plan, track
        limits = RecordLimits.of(config.recorder, config.seed)
        self.recorder = RolloutRecorder(config.rollout_dump_dir or Path(config.output_dir) / "rollouts", limits)
        tokenizer = partial(policy_tokenizer, "actor_train", config.actor_train.model_args)
        self._tokens = TokenRecords(config.recorder.log_prob_steps, tokenizer)
        self.board: LoggingBoard | None = None

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        self.take(at.step + 1, trained)

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> Metrics:
        self.scored(at.step + 1, at.clusters, scores, at.temperature, at.timer)
        return {}

    def take(self, step: int, trained: Sequence[TrajectoryGroup]) -> None:
        """The groups that are trained on, before their tokens are given away. `step`: steps done with this one."""
        if self.board is not None:
            self.board.take(trained)
        self._tokens.take(step, trained, self.recorder.choose)

    def scored(
        self, step: int, clusters: RLClusters, scores: Mapping[str, ScoreSet], temperature: float, timer: Timer
    ) -> None:
        """Records the scores of these groups' rows, before the training."""
        if self.board is not None:
            with timer("logging_board"):
                self.board.write(step, scores)
        self._tokens.compare(clusters, self._plan.actor_train.dp_size, scores, temperature, timer)

    def write(
        self,
        step: int,
        groups: Sequence[TrajectoryGroup],
        kind: str = "train",
        sampled: Sequence[TrajectoryGroup] | None = None,
    ) -> None:
        """A few of the groups; texts are asked for where they are recorded only. `sampled`: all there were, if these
        are not."""
        self.recorder.measure(step, groups if sampled is None else sampled, kind)
        tokens = self._tokens.of_rows() if kind == "train" else {}
        records = [
            record
            for group in self.recorder.choose(groups, step)
            for record in rollout_records(group, texts_of(group.trajectories), tokens)
        ]
        self.recorder.record(step, records, kind, num_groups=len(groups))
        keys = self._config.recorder
        if keys.is_tracked(step, kind):
            self._track(step, kind, tracked_samples(records, self.recorder.limits, keys.tracked_samples))
