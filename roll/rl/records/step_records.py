"""Records of a step for people to look at: its rollouts on disk and in trackers, and the logging board."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, zip_longest
from pathlib import Path

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.jobs import ScoreSet
from roll.distributed.executor.step_rows import fetched, texts_of
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.rl.records.recorder import RecordLimits, RolloutRecord, RolloutRecorder, choose_groups, rollout_records
from roll.rl.records.token_records import LoggingBoard, RowKey, TokenLogProbs, TokenRecords
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.tracking.tracker import TrackedSample
from roll.types.rollout import TrajectoryGroup
from roll.utils.timing import Timer

# Which of a step's recorded rollouts the trackers get.


def tracked_samples(records: Sequence[RolloutRecord], limits: RecordLimits, count: int) -> list[TrackedSample]:
    """Chooses up to `count` records, one of each group in turn, with long texts cut."""
    in_turn = chain.from_iterable(zip_longest(*choose_groups(records, limits)))
    return [
        TrackedSample(
            group=str(record.group_id),
            domain=record.domain,
            prompt=record.prompt_text,
            response=_said(record),
            reward=record.reward,
            ground_truth=record.ground_truth or "",
            finish_reason=record.finish_reason,
            response_tokens=record.response_tokens,
        )
        for record in [record for record in in_turn if record is not None][:count]
    ]


def _said(record: RolloutRecord) -> str:
    """Text of the response; the exchanges of an episode one after the other."""
    turns = [f"[sees] {turn.observation}\n[says] {turn.response}" for turn in record.turns]
    return "\n".join(turns) or record.response_text


Track = Callable[[int, str, Sequence[TrackedSample]], None]
"""Gives samples of a step to the trackers: steps done, kind, samples."""


def _records(group: TrajectoryGroup, tokens: Mapping[RowKey, TokenLogProbs]) -> list[RolloutRecord]:
    """The attempts of a group, with the pictures that an environment showed."""
    texts, media = texts_of(group.trajectories), []
    if any(turn.num_pictures for said in texts for turn in said.turns):
        media = [row.media for row in fetched([group.trajectories])[0]]
    return rollout_records(group, texts, tokens, media)


class StepRecords(StepPart):
    """`board` is there where the run has one."""

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan, track: Track):
        self._config, self._plan, self._track = config, plan, track
        limits = RecordLimits.of(config.recorder)
        self.recorder = RolloutRecorder(config.rollout_dump_dir or Path(config.output_dir) / "rollouts", limits)
        tokenizer = partial(policy_tokenizer, "actor_train", config.actor_train.model_args)
        self._tokens = TokenRecords(config.recorder.log_prob_steps, tokenizer)
        self.board: LoggingBoard | None = None
        self._first_rows: dict[int, int] = {}  # of the groups that are trained on, by group
        self._waiting: tuple[int, list[RolloutRecord], int] | None = None
        self._is_training = False

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        self.take(at.step + 1, trained)

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> Metrics:
        self.scored(at.step + 1, at.clusters, scores, at.temperature, at.timer)
        self._is_training = True
        return {}

    def after_publish(self, at: StepContext, metrics: Metrics) -> Metrics:
        self.finish()
        return {}

    def add_advantages(self, row_advantages: np.ndarray) -> None:
        """Write the advantage of each row into its record. `row_advantages`: as in TrainBatch.row_advantages."""
        if self._waiting is not None:
            step, records, num_groups = self._waiting
            with_advantage = [self._with_advantage(record, row_advantages) for record in records]
            self._waiting = step, with_advantage, num_groups

    def finish(self) -> None:
        """Writes the rollouts of a step that trained, or of one that ended while it did."""
        waiting, self._waiting, self._is_training = self._waiting, None, False
        if waiting is not None:
            step, records, num_groups = waiting
            self.recorder.record(step, records, num_groups=num_groups)

    def _with_advantage(self, record: RolloutRecord, row_advantages: np.ndarray) -> RolloutRecord:
        first = self._first_rows.get(int(record.group_id))
        if first is None:
            return record
        numbers = [first + row for row in record.rows if first + row < len(row_advantages)]
        total, count = row_advantages[numbers].sum(axis=0)
        is_known = count and np.isfinite(total)  # JSON has no other numbers
        return replace(record, advantage=float(f"{total / count:.6g}") if is_known else None)

    def take(self, step: int, trained: Sequence[TrajectoryGroup]) -> None:
        """The groups that are trained on, before their tokens are given away. `step`: steps done with this one."""
        if self.board is not None:
            self.board.take(trained)
        ends = accumulate(len(group.trajectories) for group in trained)
        self._first_rows = {
            group.group_id: end - len(group.trajectories) for group, end in zip(trained, ends, strict=True)
        }
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
        are not. While the step trains, its rollouts wait for their advantages, until the new weights are published."""
        self.recorder.measure(step, groups if sampled is None else sampled, kind)
        tokens = self._tokens.of_rows() if kind == "train" else {}
        records = [record for group in self.recorder.choose(groups, kind) for record in _records(group, tokens)]
        if kind == "train" and self._is_training:  # the advantages are not there yet
            self._waiting = step, records, len(groups)
        else:
            self.recorder.record(step, records, kind, num_groups=len(groups))
        keys = self._config.recorder
        if keys.is_tracked(step, kind):
            self._track(step, kind, tracked_samples(records, self.recorder.limits, keys.tracked_samples))
