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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roll.algorithms.advantage import group_advantages
from roll.algorithms.credit import CreditSettings
from roll.algorithms.loss import explained_variance
from roll.algorithms.normalize import RunningMoments
from roll.configs.algorithm import AlgorithmConfig
from roll.configs.checks import critic_warmup_problems
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.derive import compares_vocabulary, needs_ref_log_probs
from roll.distributed.executor.jobs import RowCredit, TrainJob, TurnValues
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.step_rows import StepRows, texts_of
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError, ConfigError
from roll.pipeline import settings
from roll.pipeline.alarms import GAP, CollapseAlarm, GapAlarm, LengthAlarm
from roll.pipeline.checkpoint import HF_MODEL, Checkpoint
from roll.pipeline.engine_probe import EngineProbe
from roll.pipeline.experience.explorer import EarlyRollouter
from roll.pipeline.experience.read_groups import ReadGroups
from roll.pipeline.filtered_step import FewGroupsAlarm, filter_metrics, kept_share, of_empty, of_kept, updates_of
from roll.pipeline.full_kl import FullKL
from roll.pipeline.late_rewards import LateRewards
from roll.pipeline.logging_board import LoggingBoard
from roll.pipeline.mix import Mix
from roll.pipeline.policy_tokenizer import check_teacher, policy_tokenizer
from roll.pipeline.recorder import RecordLimits, RolloutRecorder, rollout_records
from roll.pipeline.resume_checks import RLState, check_resume, data_place, state_of_roles
from roll.pipeline.rollout_loop import OwnRollouter, load_loop
from roll.pipeline.rollout_metrics import rollout_metrics
from roll.pipeline.rollout_mock import RecordedRollouter, RolloutDump
from roll.pipeline.rollout_report import ReportedRollouter, RolloutReport
from roll.pipeline.run_in_parts import RunInParts
from roll.pipeline.scoring import teacher_scores, token_scores
from roll.pipeline.shaping.chain import Shaping
from roll.pipeline.step_samples import StepSamples, share_rows
from roll.pipeline.taken_optimizers import check_taken, take_over
from roll.pipeline.token_records import TokenRecords
from roll.pipeline.tracked_samples import tracked_samples
from roll.pipeline.view import Column, Curve, View
from roll.types.batch import RowMeta
from roll.types.metrics import prefixed
from roll.types.rollout import Rollouter, TrajectoryGroup
from roll.utils.once import Once

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
    training=Curve("reward", "rollout/reward_mean", "mean reward"),
    validation=Curve("validation", "val/reward_mean", "validation", parts=("val/reward_mean/", "val/pass_at_")),
)


class RLPipeline(RunInParts):
    """Holds the clusters and runs the step. A pipeline builds the scheduler around its Rollouter, which says how one
    group of trajectories is made and rewarded, and says how to evaluate."""

    view = VIEW

    source: TaskSource
    mix: Mix

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self.loop = EventLoopThread("rollouts")
        self.clusters: RLClusters | None = None
        self.temperature = config.actor_infer.generating_args.temperature or 1.0
        self.policy_loss = settings.policy_loss(config, plan)
        self.value_loss = settings.value_loss(config)
        self.advantages = settings.advantage_settings(config)
        self.kl_controller = settings.kl_controller(config)
        self.gap_alarm = GapAlarm(config.log_prob_diff_warning, plan.keeps_kv)
        self.collapse_alarm = CollapseAlarm(config.collapse_warning_steps)
        self.few_groups_alarm = FewGroupsAlarm()
        self.length_alarm = LengthAlarm(plan.bounds.unfinished == "drop")
        self.changed_keys: frozenset[str] = frozenset()  # settings that are not the checkpoint's
        self.running_moments: dict[str, RunningMoments] = {}  # of the rewards, by domain
        self.shaping = Shaping(config.experience_operators if config.learns else ())
        self.late_rewards: LateRewards | None = None  # for what is rewarded after the rollout
        limits = RecordLimits.of(config.recorder, config.seed)
        self.recorder = RolloutRecorder(config.rollout_dump_dir or self.output_dir / "rollouts", limits)
        tokenizer = partial(policy_tokenizer, "actor_train", config.actor_train.model_args)
        self.token_records = TokenRecords(config.recorder.log_prob_steps, tokenizer)
        self.board: LoggingBoard | None = None
        self.dump = RolloutDump(Path(config.rollout_mock.dump_dir)) if config.rollout_mock.dumps else None
        self.probe: EngineProbe | None = None  # where no token that is trained on may be of the weights that learn
        if config.runs_ahead and not config.is_in_parts:
            sampling = settings.sampling_params(config.actor_infer.generating_args, plan.response_length)
            self.probe = EngineProbe(sampling, config.seed, self.gap_alarm)
        self.full_kl: FullKL | None = None
        self.recorded: RecordedRollouter | None = None  # what is trained on instead of new rollouts

    @abstractmethod
    def load_data(self) -> TaskSource:
        """The tasks to train on, from the first one on; raises ConfigError for what is wrong with the data."""

    def load_validation(self) -> None:
        """What validation needs of files; raises ConfigError likewise."""

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        """Data are read here although processes could start meanwhile: what is refused must cost no device a
        minute."""
        config = self.config
        if config.samples:
            self.load_validation()
        self.open_buffer()
        if config.explores:
            self.rollout_loop = load_loop(config.user_defined_rollout_loop_cls)
            self.recorded = RecordedRollouter(config) if config.rollout_mock.replays else None
            self.source = self.load_data()
        if config.learns:
            self._prepare_training(checkpoint)
        else:
            self.prepare_part(checkpoint)

    def _prepare_training(self, checkpoint: Checkpoint | None) -> None:
        for role in self.config.taught:
            teacher, policy = self.config.teacher_roles[role].model_args, self.config.actor_train.model_args
            check_teacher(role, teacher, policy, policy_tokenizer("actor_train", policy))
        if compares_vocabulary(self.config):
            self.full_kl = FullKL(self.config, self.temperature)
        if problems := [problem.text for problem in critic_warmup_problems(self.config)]:
            raise ConfigError(*problems)
        self.mix = Mix.load(self.config, self.plan, policy_tokenizer("actor_train", self.config.actor_train.model_args))
        if checkpoint is None:
            check_taken(self.config, self.plan)
        else:
            state, self.changed_keys = check_resume(checkpoint, self.config, self.plan, RLState)
            if self.config.explores:
                data_place(self.source, state.data, checkpoint.path)
            self.mix.load_state(state.mix, checkpoint.path)

    def for_training(self, rollouter: Rollouter) -> Rollouter:
        """What makes the groups of the training, with the pipeline's own rollouter at hand: recorded ones, the user's
        own loop, or that rollouter."""
        if self.recorded is not None:
            return self.recorded
        if self.rollout_loop is not None:
            rollouter = OwnRollouter(self.rollout_loop(rollouter), self.plan.group_size)
        is_settled = self.plan.bounds.is_in_order and self.late_rewards is None and self.keep() is None
        if self.explorer is not None and is_settled:
            rollouter = EarlyRollouter(rollouter, self.explorer)
        if self.config.runner_state_report_interval:
            report = RolloutReport(self.config.runner_state_report_interval, self.running.actor_infer.loads)
            rollouter = ReportedRollouter(rollouter, report)
        return rollouter

    def begin(self, steps_done: int) -> None:
        if self.config.learns:
            take_over(self.config, self.running)
        super().begin(steps_done)

    def step(self, step: int) -> dict[str, float]:
        clusters, hold = self.running, self.running.placement.hold
        with self.timer("rollout"), hold(*([clusters.actor_infer.everything] if self.config.samples else ())):
            groups = self.collect(step)
        if self.late_rewards is not None and self.recorded is None:
            with self.timer("reward"):
                groups = self.scheduler.judged_again(groups, self.late_rewards.complete(groups.sampled), step)
        if self.dump is not None:
            with self.timer("dump"):
                self.dump.write(step + 1, groups.sampled)
        if self.explorer is not None:
            return self.hand_over(self.explorer, groups, step)
        with self.timer("gather"):
            groups, shaped = self.shaping.apply(groups)
            samples, trained = self.gather(groups, step)
        if self.probe is not None:
            self.probe.take_prompt(trained)
        report = Once(partial(self.report, groups, trained, step))
        del groups, trained  # their tokens are in the shards now
        with clusters.placement.kept_free(clusters.actor_train.everything):
            metrics = {"actor/num_updates": 0.0} if samples is None else self._learn(samples, report, step)
            metrics = report() | metrics | shaped
            self.account.ask()
            with self.timer("weight_sync"):
                is_last = step + 1 == self.config.max_steps
                metrics |= self.publisher.publish(clusters, self.scheduler, step + 1, is_last)
        if self.probe is not None and self.publisher.engine_version == step + 1:
            self.probe.ask(clusters.actor_infer, metrics, step + 1)
        return metrics | self.collapse_alarm.look(step + 1, self._telling(metrics))

    def _telling(self, metrics: dict[str, float]) -> dict[str, float]:
        """Those that say whether something was learned: without rewards to learn from, not what they were."""
        if not self.config.is_pure_opd:
            return metrics
        return {name: value for name, value in metrics.items() if not name.startswith("rollout/reward_")}

    def _learn(self, samples: StepSamples, report: Callable[[], object], step: int) -> dict[str, float]:
        """`report` is called while the first ranks train."""
        clusters, hold = self.running, self.running.placement.hold
        with self.timer("score"):
            ref_log_probs = needs_ref_log_probs(self.config)
            scores = token_scores(clusters, self.plan, samples, self.temperature, self.timer, ref_log_probs)
            scores |= teacher_scores(clusters, self.config.teacher_of, samples, self.temperature, self.timer)
            lessons = {} if self.full_kl is None else self.full_kl.lessons(clusters, samples, self.timer)
        if self.board is not None:
            with self.timer("logging_board"):
                self.board.write(step + 1, scores)
        ranks = self.plan.actor_train.dp_size
        self.token_records.compare(clusters, ranks, scores, self.temperature, self.timer)
        credit, metrics = self.assign_credit(samples, step)
        metrics = prefixed("rollout", of_kept(metrics, samples.kept_share) if self.filters else metrics)
        if self.probe is not None:
            metrics |= self.probe.compare(clusters, self.plan.actor_train.dp_size, self.temperature, step)

        if clusters.critic is not None and samples.critic is not None:
            with self.timer("train_critic"), hold(clusters.critic.everything):
                critic = clusters.critic.train(samples.critic, self._critic_job(samples, credit), scores, report)
            metrics |= prefixed("critic", _with_explained_variance(critic))
        if clusters.critic is None or step >= self.config.critic_warmup:
            job = self._actor_job(samples, credit)
            mixed = self.mix.join(job, step)
            job, expert, told = (job, None, {}) if mixed is None else (mixed.job, mixed.rows, mixed.metrics)
            with self.timer("train_actor"), hold(clusters.actor_train.everything):
                learnt = clusters.actor_train.train(samples.policy, job, scores | lessons, report, expert)
            metrics |= self._actor_metrics(learnt, samples, step) | told
            metrics["actor/num_updates"] = float(job.num_updates * job.epochs)
        return metrics

    def collect(self, step: int) -> StepGroups:
        """The groups of this step."""
        return self.scheduler.collect(step)

    @property
    def filters(self) -> bool:
        """True if groups of a step may be dropped."""
        return self.scheduler.filters or self.shaping.filters

    @property
    def running(self) -> RLClusters:
        """The clusters, once they are built."""
        assert self.clusters is not None
        return self.clusters

    def gather(self, groups: StepGroups, step: int) -> tuple[StepSamples | None, Sequence[TrajectoryGroup]]:
        """Flat rows, shared out to the ranks that will train on them, and the groups that they are of. Rows that do not
        fill the updates are padded with rows that have nothing to train on, which cannot change the gradient. None
        where the filter kept nothing and what it dropped is not trained on (`on_empty`)."""
        trained = groups
        if self.filters:
            try:
                trained = of_empty(groups, self.config.on_empty, self.plan.num_groups, step)
            except AlgorithmError:  # somebody will want to see them
                self._record(step + 1, groups.dropped)
                raise
            self.few_groups_alarm.look(groups, self.plan.num_groups, step, self.config.on_empty)
        if not trained.kept:
            return None, ()
        if self.board is not None:
            self.board.take(trained.kept)
        self.token_records.take(step + 1, trained.kept, self.recorder.choose)
        sampled, num_kept, share = StepRows(trained.kept), len(trained.kept), kept_share(trained)
        actor, critic = self.plan.actor_train, self.plan.critic
        updates = updates_of(actor.updates_per_epoch, num_kept, self.plan.num_groups)
        random = np.random.default_rng([self.config.seed, step])
        rows = self.chosen_rows(len(sampled), updates * actor.dp_size, random)
        policy = share_rows(sampled, rows, (updates, actor.dp_size), self.running.actor_train, random)
        if critic is None:
            return StepSamples(policy, updates, None, 0, share), trained.kept
        critic_updates = updates_of(critic.updates_per_epoch, num_kept, self.plan.num_groups)
        same = (critic.dp_size, critic_updates) == (actor.dp_size, updates)
        if same:
            return StepSamples(policy, updates, policy, critic_updates, share), trained.kept
        assert self.running.critic is not None
        random = np.random.default_rng([self.config.seed, step])
        others = share_rows(sampled, rows, (critic_updates, critic.dp_size), self.running.critic, random)
        return StepSamples(policy, updates, others, critic_updates, share), trained.kept

    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        """Records a few of the step's groups, and gives the metrics of its rollouts. Nothing waits for it."""
        self._record(step + 1, groups.kept or groups.dropped, sampled=groups.sampled)
        return self._rollout_metrics(groups, trained, step)

    def _record(
        self,
        step: int,
        groups: Sequence[TrajectoryGroup],
        kind: str = "train",
        sampled: Sequence[TrajectoryGroup] | None = None,
    ) -> None:
        """Of a few of the groups; texts are asked for where they are recorded only. `sampled`: all there were, if these
        are not."""
        self.recorder.measure(step, groups if sampled is None else sampled, kind)
        tokens = self.token_records.of_rows() if kind == "train" else {}
        records = [
            record
            for group in self.recorder.choose(groups, step)
            for record in rollout_records(group, texts_of(group.trajectories), tokens)
        ]
        self.recorder.record(step, records, kind, num_groups=len(groups))
        keys = self.config.recorder
        if keys.is_tracked(step, kind):
            self.trackers.samples(step, kind, tracked_samples(records, self.recorder.limits, keys.tracked_samples))

    def _rollout_metrics(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        metrics = rollout_metrics(groups, trained, step)
        if self.filters:
            metrics |= filter_metrics(groups, trained)
        self.length_alarm.look(metrics)
        if isinstance(self.scheduler, ReadGroups):
            return metrics | self.scheduler.metrics()
        return metrics | self.running.actor_infer.metrics()

    def chosen_rows(self, num_rows: int, multiple: int, random: np.random.Generator) -> np.ndarray:
        """Ids of the rows that the policy trains on, in updates and ranks that make `multiple` parts; here all. The
        critic trains on the same: each needs the other's scores of them."""
        return np.arange(num_rows)

    def assign_credit(self, samples: StepSamples, step: int) -> tuple[RowCredit, dict[str, float]]:
        """The group part of credit, here, from metadata. The token part is done by the workers that train."""
        meta = samples.meta
        row_values, turn_values, metrics = self.row_values(meta)
        if self.config.is_pure_opd:
            row_values, turn_values = np.zeros(len(meta)), None
        weights, weight_metrics = self.row_weights(meta)
        taught = settings.teacher_weights(self.config, meta.domains)
        credit = RowCredit(self.credit_settings(step), row_values, weights, turn_values, taught)
        return credit, metrics | weight_metrics

    def credit_settings(self, step: int) -> CreditSettings:
        """How the workers spread the rows' values over their tokens."""
        return replace(
            settings.credit_settings(self.config, self.kl_controller.coef, step),
            old_is_rollout=self.plan.old_log_probs.source == "rollout",
        )

    def row_values(self, meta: RowMeta) -> tuple[np.ndarray, TurnValues | None, dict[str, float]]:
        """What each row earned compared with the others, or each of its turns; and metrics."""
        if "running" in self.advantages.norms:
            self._update_running_moments(meta)
        values, metrics = group_advantages(
            meta.rewards,
            meta.group_ids,
            self.advantages,
            meta.domains,
            self.running_moments,
            meta.response_lengths,
            meta.greedy_rewards,
        )
        return values, None, metrics

    def _update_running_moments(self, meta: RowMeta) -> None:
        for domain in np.unique(meta.domains):
            moments = self.running_moments.get(str(domain), RunningMoments())
            self.running_moments[str(domain)] = moments.update(meta.rewards[meta.domains == domain])

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        """Weights of the rows in the loss, 0 for rows that are left out; None: all alike."""
        return None, {}

    def _actor_job(self, samples: StepSamples, credit: RowCredit) -> TrainJob:
        epochs = self.plan.actor_train.epochs
        idle = settings.idle_rows(self.config)
        return TrainJob(self.policy_loss, self.temperature, samples.policy_updates, epochs, credit, idle)

    def _critic_job(self, samples: StepSamples, credit: RowCredit) -> TrainJob:
        assert self.plan.critic is not None
        return TrainJob(self.value_loss, self.temperature, samples.critic_updates, self.plan.critic.epochs, credit)

    def _actor_metrics(self, metrics: dict[str, float], samples: StepSamples, step: int) -> dict[str, float]:
        """Names what the policy's training says, and lets the KL controller see its KL."""
        if "kl_mean" in metrics and self.config.add_token_level_kl:
            self.kl_controller = self.kl_controller.update(metrics["kl_mean"], len(samples.meta))
            metrics["kl_coef"] = self.kl_controller.coef
        gap = {name: metrics.pop(name) for name in list(metrics) if name.startswith("train_infer_")}
        named = {f"train_infer/{name.removeprefix('train_infer_')}": value for name, value in gap.items()}
        difference = named.get(GAP)
        if difference is None:  # nothing was of the weights that learn
            named.pop("train_infer/log_prob_diff_max", None)
        elif self.config.runs_ahead or (self.recorded is None and self.publisher.engine_version == step):
            self.gap_alarm.look(difference)  # else weights differ, and so should log-probs
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
            **self.scheduler.save(directory, ends=self.interrupts.requested),
            "kl_coef": self.kl_controller.coef,
            "shaping": self.shaping.state(),
            "mix": self.mix.state(),
            "running_moments": {domain: asdict(moments) for domain, moments in self.running_moments.items()},
            **state_of_roles(self.config, self.plan),
        }

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        if not self.config.learns:  # they are the engines' already
            return
        clusters, hold = self.running, self.running.placement.hold
        with hold(clusters.actor_train.everything):
            clusters.actor_train.load_checkpoint(directory / "actor_train")
        if clusters.critic is not None:
            with hold(clusters.critic.everything):
                clusters.critic.load_checkpoint(directory / "critic")
        if "init_kl_coef" not in self.changed_keys:
            self.kl_controller = replace(self.kl_controller, coef=float(state["kl_coef"]))
        self.running_moments = {domain: RunningMoments(**saved) for domain, saved in state["running_moments"].items()}
        self.shaping.load(state.get("shaping", []))
        of_groups = state.get("experience" if isinstance(self.scheduler, ReadGroups) else "groups")
        self.account.brought(self.scheduler.restore(directory, of_groups, steps_done))
        self.publisher.send(clusters, steps_done)
        self.scheduler.published(steps_done)

    def close(self) -> None:
        self.loop.close()
        if self.clusters is not None:
            self.clusters.close()
        self.close_buffer()


def _with_explained_variance(metrics: dict[str, float]) -> dict[str, float]:
    explained = explained_variance(metrics)
    return metrics if explained is None else metrics | {"explained_variance": explained}
