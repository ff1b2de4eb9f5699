"""The reinforcement-learning step: rollout -> reward -> score -> credit -> train -> publish. Written once, for every
pipeline.

What travels, where each part runs (the driver's thread is this module's own), and what a method hands on:

    driver's thread            driver's event loop          engines, env workers, reward pools
    ------------------------------------------------------------------------------------------
    collect(step) ---------->  RolloutScheduler
                                 TaskSource -> Task
                                 Rollouter: one group  ---> GenerationRequest -> Generation
                                                            rewards or environments
       StepGroups  <---------    TrajectoryGroup      <---  Trajectory; of many tokens only what is known of them:
                                                            rows and texts stay in the object store
          |
    reward  --- groups whose rewards are given late ------> a reward model, a judge
       StepGroups  <-------------------------------------- (most runs have neither)
          |
    gather                     RowMeta of each row; flat rows without padding (SampleBatch) are cut here from
                               tokens that came along, put together by the ranks from those in the object store
       StepSamples             per role that learns a SampleSet: RowMeta here, Shards in the object store
          |
          |                                                 train, reference and critic workers
    ------------------------------------------------------------------------------------------
    score  --- SampleSet ---------------------------------> log-probs and values per token
       ScoreSet  <----------------------------------------  handles: the arrays stay in the object store
          |
    assign_credit              RowMeta -> one value and one weight per row (the group part)
       TrainJob
          |
    train  --- SampleSet, TrainJob -----------------------> credit per token, then for each update
                                                            TrainBatch -> MicroBatch -> loss -> gradient
       metrics  <-----------------------------------------  sums over ranks
          |
    publish(version) --------> the next groups start         trainer -> WeightBuckets -> engines, not by the driver

`Placement.hold` says around each part whose states it needs on their devices; what shares them makes room.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.algorithms.credit import RowCredit
from roll.algorithms.policy_loss import explained_variance
from roll.configs.plan.batch_plan import BatchPlan, critic_warmup_problems
from roll.configs.plan.derive import compares_vocabulary, needs_ref_log_probs
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.tables.features import active
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.step_rows import StepSamples, gathered
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.errors import AlgorithmError, ConfigError
from roll.rl import settings
from roll.rl.evaluation import Validation
from roll.rl.late_rewards import LateRewards
from roll.rl.metrics import (
    GAP,
    ExactAlarm,
    FewGroupsAlarm,
    GapAlarm,
    filter_metrics,
    kept_fraction,
    replace_empty,
    rollout_metrics,
    scaled_to_kept,
)
from roll.rl.mode import RLMode, make_mode
from roll.rl.parts import GroupSource, StepContext, StepPart, StepParts
from roll.rl.records.step_records import StepRecords
from roll.rl.records.token_records import Once
from roll.rl.scoring import FullKL, StepScores, teacher_scores, token_scores
from roll.rl.step_credit import StepCredit
from roll.run.display.view import Column, Curve, View
from roll.run.loop import Run
from roll.run.policy_tokenizer import check_teacher, policy_tokenizer
from roll.run.saving.checkpoint import HF_MODEL, Checkpoint
from roll.run.saving.rehearsal import rehearse_saving
from roll.run.saving.resume import RLState, check_resume, data_place, state_of_roles
from roll.types.metrics import prefixed
from roll.types.rollout import Rollouter, TrajectoryGroup
from roll.types.row_numbers import repetitions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


VIEW = View(
    columns=(
        Column("reward", "rollout/reward_mean", ".3f"),
        Column("val", "val/reward_mean", ".3f"),
        Column("length", "rollout/response_length_mean", ".1f"),
        Column("entropy", "actor/entropy_mean", ".3f"),
        Column("clip", "actor/clip_fraction", ".3f"),
        Column("grad", "actor/grad_norm", ".3g"),
        Column("lr", "actor/learning_rate", ".1e"),
    ),
    training=Curve("reward", "rollout/reward_mean"),
    validation=Curve("validation", "val/reward_mean"),
)


class RLPipeline(Run):
    """Holds the clusters and runs the step. A pipeline builds the scheduler around its Rollouter, which says how one
    group of trajectories is made and rewarded, and says how to evaluate."""

    view = VIEW
    config: AlgorithmConfig
    mode: RLMode

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan):
        super().__init__(config, make_mode(config, lambda: self.interrupts.requested))
        self.plan = plan
        self.publisher = self.mode.publisher(config)
        self.scheduler: GroupSource | None = None  # there once it is built
        self.loop = EventLoopThread("rollouts")
        self.clusters: RLClusters | None = None
        self.temperature = config.actor_infer.generating_args.temperature or 1.0
        self.tasks: TaskSource | None = None  # of a process that samples what is trained on
        self.rollout_loop: Callable[[Rollouter], Rollouter] | None = None  # the user's own
        self.credit = self.make_credit()
        self.records = StepRecords(config, plan, lambda *samples: self.trackers.samples(*samples))
        self.few_groups_alarm = FewGroupsAlarm()
        self.validation: Validation | None = None
        self.changed_keys: frozenset[str] = frozenset()  # settings that are not the checkpoint's
        self.recorded: Rollouter | None = None  # what is trained on instead of new rollouts
        self.late_rewards = LateRewards()
        self.parts = StepParts(self.make_parts())

    def make_credit(self) -> StepCredit:
        return StepCredit(self.config, self.plan)

    def make_parts(self) -> list[StepPart]:
        """The parts of this run's steps, in the order in which they are called and saved."""
        config, plan = self.config, self.plan
        is_mocked = config.rollout_mock.replays
        threshold = settings.log_prob_diff_threshold(config, plan.keeps_kv)
        gap = GapAlarm(threshold, plan.keeps_kv, config.is_async, not is_mocked)
        parts: list[StepPart] = [] if is_mocked else [self.late_rewards]
        if config.rollout_mock.dumps:
            from roll.rl.rollouters import RolloutDump

            parts.append(RolloutDump(Path(config.rollout_mock.dump_dir)))
        parts += [part for feature in active(config) for part in feature.step_parts(config, plan)]
        parts.append(self.records)
        if config.has_training and compares_vocabulary(config):
            parts.append(FullKL(self.temperature))
        if plan.exact and not is_mocked and plan.old_log_probs.source != "rollout":
            parts.append(ExactAlarm(config.is_async))
        return [*parts, gap]

    @abstractmethod
    def load_data(self) -> TaskSource:
        """The tasks to train on, from the first one on; raises ConfigError for what is wrong with the data."""

    def load_validation(self) -> None:
        """Load the files that validation needs; raises ConfigError likewise."""

    @abstractmethod
    def group_filter(self) -> Keep | None:
        """Return the filter that keeps groups worth training on; None: all are kept."""

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        """Read the data before any process starts, so that a bad file fails without occupying GPUs."""
        config, _ = self.config, self.tokenizer  # one that does not fit is refused, whatever else a run reads
        if config.uses_engines:
            self.load_validation()
        self.mode.open()
        if config.has_rollouts:
            if config.user_defined_rollout_loop_cls is not None:
                from roll.rl.rollout_loop import load_loop

                self.rollout_loop = load_loop(config.user_defined_rollout_loop_cls)
            if config.rollout_mock.replays:
                from roll.rl.rollouters import RecordedRollouter

                self.recorded = RecordedRollouter(config)
            self.tasks = self.load_data()
        self.publisher = self.mode.publisher(self.config)  # the length of the run is known now
        self.config = self.mode.prepare(self.config, self.plan, checkpoint)
        if config.has_training:
            self._prepare_training(checkpoint)

    def _prepare_training(self, checkpoint: Checkpoint | None) -> None:
        for role in self.config.taught:
            teacher, policy = self.config.teacher_roles[role].model_args, self.config.actor_train.model_args
            check_teacher(role, teacher, policy, self.tokenizer)
        if problems := [problem.text for problem in critic_warmup_problems(self.config)]:
            raise ConfigError(*problems)
        self.parts.prepare(self.config, self.plan)
        if checkpoint is not None:
            state, self.changed_keys = check_resume(checkpoint, self.config, self.plan, RLState)
            if self.tasks is not None:
                data_place(self.tasks, state.data, checkpoint.path)
            self.parts.resume(checkpoint.state.run, checkpoint.path)
        rehearse_saving(self.config)

    def for_training(self, rollouter: Rollouter) -> Rollouter:
        """Return the training's rollouter: of recorded groups, the user's loop around the pipeline's, or that one."""
        if self.recorded is not None:
            return self.recorded
        if self.rollout_loop is not None:
            from roll.rl.rollout_loop import UserRollouter

            rollouter = UserRollouter(self.rollout_loop(rollouter), self.plan.group_size)
        is_settled = self.plan.bounds.is_in_order and self.late_rewards.is_empty and self.group_filter() is None
        rollouter = self.mode.rollouter(rollouter, is_settled)
        if self.config.runner_state_report_interval:
            from roll.rl.rollouters import ReportedRollouter, RolloutReport

            report = RolloutReport(self.config.runner_state_report_interval, self.running.actor_infer.loads)
            rollouter = ReportedRollouter(rollouter, report)
        return rollouter

    def begin(self, steps_done: int) -> None:
        self.mode.begin(steps_done, self.scheduler, self.history)
        if self.mode.hands_over:
            self.publisher.send(self.running, steps_done)
            self.group_source.published(steps_done)

    def step(self, step: int) -> dict[str, float]:
        at, clusters = self.context(step), self.running
        with self.timer("rollout"), self.engines_held():
            groups = self.collect(step)
        groups, shaped = self.parts.after_rollout(at, groups)
        if self.mode.hands_over:
            return self.hand_over(at, groups)
        with self.timer("gather"):
            samples, trained = self.gather(groups, step)
        report = Once(partial(self.report, groups, trained, step))
        del groups, trained  # their tokens are in the shards now
        with clusters.placement.reserved(clusters.actor_train.everything):
            metrics = {"actor/num_updates": 0.0}
            if samples is not None:
                scores = self.score(at, samples)
                credit, metrics = self.assign_credit(samples, step)
                metrics |= self.parts.before_training(at, scores.per_token)
                metrics |= self.train(at, samples, scores, credit, report)
            metrics = report() | metrics | shaped  # of equal names the last value counts
            self.parts.before_publish(at, metrics)
            self.accounting.request_usage()
            metrics |= self.publish(step)
        return metrics | self.parts.after_publish(self.context(step), metrics)

    def hand_over(self, at: StepContext, groups: StepGroups) -> dict[str, float]:
        """Ends a step that is trained on elsewhere. The weights that come out of it are waited for."""
        with self.timer("hand_over"):
            self.mode.hand_over(at.step, groups)
        metrics = self.report(groups, groups.groups, at.step)
        self.parts.before_publish(at, metrics)
        self.accounting.request_usage()
        return metrics | self.publish(at.step)

    def publish(self, step: int) -> dict[str, float]:
        """The weights go to the engines, where they are due. Returns metrics."""
        is_last = step + 1 == self.config.max_steps
        with self.timer("weight_sync"):
            if is_last and self.mode.hands_over and self.config.eval_steps <= 0:  # nobody asks the engines any more
                return {}
            return self.publisher.publish(self.running, self.group_source, step + 1, is_last)

    def context(self, step: int) -> StepContext:
        version = self.publisher.engine_version
        return StepContext(
            step, self.plan, self.running, self.group_source, self.timer, self.temperature, engine_version=version
        )

    @contextmanager
    def engines_held(self) -> Iterator[None]:
        """The engines are on their devices meanwhile. If all die, the new ones get their weights in between."""
        if not self.config.uses_engines:
            yield
            return
        clusters = self.running
        with clusters.placement.hold(clusters.actor_infer.everything), self.loop.meanwhile(self._revive_engines):
            yield

    def _revive_engines(self) -> None:
        engines = self.running.actor_infer
        if not engines.all_wait_for_weights:
            return
        if self.config.has_training:
            self.publisher.revive(self.running, self.group_source)
        else:  # they keep what they load: one could not be brought back, and this raises why
            engines.heal()

    def score(self, at: StepContext, samples: StepSamples) -> StepScores:
        clusters = self.running
        with self.timer("score"):
            ref_log_probs = needs_ref_log_probs(self.config)
            scores = token_scores(clusters, self.plan, samples, self.temperature, self.timer, ref_log_probs)
            scores |= teacher_scores(clusters, self.config.teacher_of, samples, self.temperature, self.timer)
            routes = {"routes": scores.pop("routes")} if "routes" in scores else {}
            more = self.parts.scores(at, samples, {*scores, *routes})
        return StepScores(scores, more | routes)

    def assign_credit(self, samples: StepSamples, step: int) -> tuple[RowCredit, dict[str, float]]:
        credit, metrics = self.credit.assign(samples, step)
        return credit, prefixed("rollout", scaled_to_kept(metrics, samples.kept_fraction) if self.filters else metrics)

    def train(
        self, at: StepContext, samples: StepSamples, scores: StepScores, credit: RowCredit, report: Callable[[], object]
    ) -> dict[str, float]:
        """Critic and policy learn. `report` is called while the first ranks train."""
        clusters, hold, metrics = self.running, self.running.placement.hold, dict[str, float]()
        if clusters.critic is not None and samples.critic is not None:
            job = self.credit.critic_job(samples, credit)
            with self.timer("train_critic"), hold(clusters.critic.everything):
                critic = clusters.critic.train(samples.critic, job, scores.per_token, report)
            metrics |= prefixed("critic", critic | _explained(critic))
            self.records.add_advantages(clusters.critic.row_advantages)
        if clusters.critic is None or at.step >= self.config.critic_warmup:
            made = self.parts.actor_job(at, self.credit.actor_job(samples, credit))
            columns = {**scores.per_token, **scores.policy}
            with self.timer("train_actor"), hold(clusters.actor_train.everything):
                learnt = clusters.actor_train.train(samples.policy, made.job, columns, report, made.rows)
            self.records.add_advantages(clusters.actor_train.row_advantages)
            numbers = clusters.actor_train.row_numbers[: len(samples.meta)]
            self.digests.record(at.step + 1, numbers)
            metrics |= prefixed("rollout", repetitions(numbers, samples.meta.group_ids, samples.meta.turns))
            metrics |= self._actor_metrics(learnt, samples)
            metrics |= {**made.metrics, "actor/num_updates": float(made.job.num_updates * made.job.epochs)}
        return metrics

    def collect(self, step: int) -> StepGroups:
        return self.group_source.collect(step)

    @property
    def filters(self) -> bool:
        return self.group_source.filters or self.parts.filters

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's. Raises ConfigError where there is none that fits."""
        return policy_tokenizer("actor_train", self.config.actor_train.model_args)

    @property
    def source(self) -> TaskSource:
        assert self.tasks is not None
        return self.tasks

    @property
    def group_source(self) -> GroupSource:
        assert self.scheduler is not None
        return self.scheduler

    @property
    def running(self) -> RLClusters:
        assert self.clusters is not None
        return self.clusters

    def gather(self, groups: StepGroups, step: int) -> tuple[StepSamples | None, Sequence[TrajectoryGroup]]:
        """The rows to train on, and their groups. None where nothing was kept and nothing is trained on
        (`on_empty`)."""
        trained = groups
        if self.filters:
            try:
                trained = replace_empty(groups, self.config.on_empty, self.plan.num_groups, step)
            except AlgorithmError:  # somebody will want to see them
                self.records.write(step + 1, groups.dropped)
                raise
            self.few_groups_alarm.check(groups, self.plan.num_groups, step, self.config.on_empty)
        if not trained.groups:
            return None, ()
        self.parts.before_gather(self.context(step), trained.groups)
        seed = (self.config.seed, step)
        parts = self.config.gdpo_reward_keys if self.config.estimator.needs_parts else ()
        share = kept_fraction(trained)
        return gathered(self.running, self.plan, trained.groups, self.chosen_rows, seed, parts, share), trained.groups

    def chosen_rows(self, num_rows: int, multiple: int, random: np.random.Generator) -> np.ndarray:
        """Return the ids of the rows to train on, here all. `multiple`: updates x ranks, which divide their number."""
        return np.arange(num_rows)

    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        """Records a few of the step's groups, and gives the metrics of its rollouts. Nothing waits for it."""
        self.records.write(step + 1, groups.groups or groups.dropped, sampled=groups.sampled)
        return self._rollout_metrics(groups, trained, step)

    def _rollout_metrics(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        metrics = rollout_metrics(groups, trained, step)
        if self.filters:
            metrics |= filter_metrics(groups, trained)
        return metrics | self.group_source.metrics()

    def _actor_metrics(self, metrics: dict[str, float], samples: StepSamples) -> dict[str, float]:
        """Names what the policy's training says, and shows the KL to its controller."""
        metrics |= self.credit.record_kl(metrics, len(samples.meta))
        gap = {name: metrics.pop(name) for name in list(metrics) if name.startswith("train_infer_")}
        named = {f"train_infer/{name.removeprefix('train_infer_')}": value for name, value in gap.items()}
        if GAP not in named:  # nothing was of the weights that learn
            named.pop("train_infer/log_prob_diff_max", None)
        return prefixed("actor", metrics) | named

    def save(self, directory: Path) -> dict[str, Any]:
        clusters, hold = self.running, self.running.placement.hold
        with hold(clusters.actor_train.everything):
            clusters.actor_train.save_checkpoint(directory / "actor_train")
            clusters.actor_train.save_hf_model(directory / HF_MODEL)
        if clusters.critic is not None:
            with hold(clusters.critic.everything):
                clusters.critic.save_checkpoint(directory / "critic")
        return {
            **self.group_source.save(directory),
            **self.credit.state(),
            **self.parts.state(),
            **state_of_roles(self.config, self.plan),
        }

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        if not self.config.has_training:  # they are the engines' already
            return
        clusters, hold = self.running, self.running.placement.hold
        with hold(clusters.actor_train.everything):
            clusters.actor_train.load_checkpoint(directory / "actor_train")
        if clusters.critic is not None:
            with hold(clusters.critic.everything):
                clusters.critic.load_checkpoint(directory / "critic")
        self.credit.load(state, self.changed_keys)
        source = self.group_source
        self.accounting.add_restored_tokens(source.restore(directory, state.get(source.state_key), steps_done))
        self.publisher.send(clusters, steps_done)
        source.published(steps_done)

    def close(self) -> None:
        self.loop.close()
        self.records.finish()  # before what may take long or be interrupted
        if self.clusters is not None:
            self.clusters.close()
        self.mode.close()

    def checkpoint_saved(self, steps_done: int) -> None:
        self.group_source.saved(steps_done)


def _explained(metrics: Mapping[str, float]) -> dict[str, float]:
    explained = explained_variance(metrics)
    return {} if explained is None else {"explained_variance": explained}
