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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roll.algorithms.loss import explained_variance
from roll.configs.algorithm import AlgorithmConfig
from roll.configs.checks import critic_warmup_problems
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.derive import compares_vocabulary, needs_ref_log_probs
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError, ConfigError
from roll.pipeline import settings
from roll.pipeline.display.alarms import GAP, CollapseAlarm, GapAlarm, LengthAlarm
from roll.pipeline.display.view import Column, Curve, View
from roll.pipeline.experience.explorer import EarlyRollouter
from roll.pipeline.experts.mix import Mix
from roll.pipeline.full_kl import FullKL
from roll.pipeline.policy_tokenizer import check_teacher, policy_tokenizer
from roll.pipeline.records.step_records import StepRecords
from roll.pipeline.rollouts.engine_probe import EngineProbe
from roll.pipeline.rollouts.filtered_step import FewGroupsAlarm, filter_metrics, of_empty, of_kept
from roll.pipeline.rollouts.late_rewards import LateRewards
from roll.pipeline.rollouts.rollout_loop import OwnRollouter, load_loop
from roll.pipeline.rollouts.rollout_metrics import rollout_metrics
from roll.pipeline.rollouts.rollout_mock import RecordedRollouter, RolloutDump
from roll.pipeline.rollouts.rollout_report import ReportedRollouter, RolloutReport
from roll.pipeline.run_in_parts import RunInParts
from roll.pipeline.saving.checkpoint import HF_MODEL, Checkpoint
from roll.pipeline.saving.rehearsal import rehearse_saving
from roll.pipeline.saving.resume_checks import RLState, check_resume, data_place, state_of_roles
from roll.pipeline.saving.taken_optimizers import check_taken, take_over
from roll.pipeline.scoring import teacher_scores, token_scores
from roll.pipeline.shaping.chain import Shaping
from roll.pipeline.step_credit import StepCredit
from roll.pipeline.step_samples import StepSamples, gathered
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
        self.credit = self.make_credit()
        self.records = StepRecords(config, plan, lambda *told: self.trackers.samples(*told))
        self.gap_alarm = GapAlarm(config.log_prob_diff_warning, plan.keeps_kv)
        self.collapse_alarm = CollapseAlarm(config.collapse_warning_steps)
        self.few_groups_alarm = FewGroupsAlarm()
        self.length_alarm = LengthAlarm(plan.bounds.unfinished == "drop")
        self.changed_keys: frozenset[str] = frozenset()  # settings that are not the checkpoint's
        self.shaping = Shaping(config.experience_operators if config.learns else ())
        self.late_rewards: LateRewards | None = None  # for what is rewarded after the rollout
        self.dump = RolloutDump(Path(config.rollout_mock.dump_dir)) if config.rollout_mock.dumps else None
        self.probe: EngineProbe | None = None  # where no token that is trained on may be of the weights that learn
        if config.runs_ahead and not config.is_in_parts:
            sampling = settings.sampling_params(config.actor_infer.generating_args, plan.response_length)
            self.probe = EngineProbe(sampling, config.seed, self.gap_alarm)
        self.full_kl: FullKL | None = None
        self.recorded: RecordedRollouter | None = None  # what is trained on instead of new rollouts

    def make_credit(self) -> StepCredit:
        """What the rows of a step earn."""
        return StepCredit(self.config, self.plan)

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
        rehearse_saving(self.config)

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
                groups = self.group_source.judged_again(groups, self.late_rewards.complete(groups.sampled), step)
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
                metrics |= self.publisher.publish(clusters, self.group_source, step + 1, is_last)
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
            routes = {"routes": scores.pop("routes")} if "routes" in scores else {}
            lessons = {} if self.full_kl is None else self.full_kl.lessons(clusters, samples, self.timer)
        self.records.scored(step + 1, clusters, scores, self.temperature, self.timer)
        credit, metrics = self.credit.assign(samples, step)
        metrics = prefixed("rollout", of_kept(metrics, samples.kept_share) if self.filters else metrics)
        if self.probe is not None:
            metrics |= self.probe.compare(clusters, self.plan.actor_train.dp_size, self.temperature, step)

        if clusters.critic is not None and samples.critic is not None:
            with self.timer("train_critic"), hold(clusters.critic.everything):
                critic = clusters.critic.train(samples.critic, self.credit.critic_job(samples, credit), scores, report)
            metrics |= prefixed("critic", critic | _explained(critic))
        if clusters.critic is None or step >= self.config.critic_warmup:
            job = self.credit.actor_job(samples, credit)
            mixed = self.mix.join(job, step)
            job, expert, told = (job, None, {}) if mixed is None else (mixed.job, mixed.rows, mixed.metrics)
            with self.timer("train_actor"), hold(clusters.actor_train.everything):
                learnt = clusters.actor_train.train(samples.policy, job, scores | lessons | routes, report, expert)
            metrics |= self._actor_metrics(learnt, samples, step) | told
            metrics["actor/num_updates"] = float(job.num_updates * job.epochs)
        return metrics

    def collect(self, step: int) -> StepGroups:
        """The groups of this step."""
        return self.group_source.collect(step)

    @property
    def filters(self) -> bool:
        """True if groups of a step may be dropped."""
        return self.group_source.filters or self.shaping.filters

    @property
    def running(self) -> RLClusters:
        """The clusters, once they are built."""
        assert self.clusters is not None
        return self.clusters

    def gather(self, groups: StepGroups, step: int) -> tuple[StepSamples | None, Sequence[TrajectoryGroup]]:
        """The rows to train on, and the groups that they are of. None where the filter kept nothing and what it dropped
        is not trained on (`on_empty`)."""
        trained = groups
        if self.filters:
            try:
                trained = of_empty(groups, self.config.on_empty, self.plan.num_groups, step)
            except AlgorithmError:  # somebody will want to see them
                self.records.write(step + 1, groups.dropped)
                raise
            self.few_groups_alarm.look(groups, self.plan.num_groups, step, self.config.on_empty)
        if not trained.kept:
            return None, ()
        self.records.take(step + 1, trained.kept)
        seed = (self.config.seed, step)
        return gathered(self.running, self.plan, trained, self.chosen_rows, seed), trained.kept

    def chosen_rows(self, num_rows: int, multiple: int, random: np.random.Generator) -> np.ndarray:
        """Ids of the rows to train on, in updates and ranks that make `multiple` parts; here all."""
        return np.arange(num_rows)

    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        """Records a few of the step's groups, and gives the metrics of its rollouts. Nothing waits for it."""
        self.records.write(step + 1, groups.kept or groups.dropped, sampled=groups.sampled)
        return self._rollout_metrics(groups, trained, step)

    def _rollout_metrics(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        metrics = rollout_metrics(groups, trained, step)
        if self.filters:
            metrics |= filter_metrics(groups, trained)
        self.length_alarm.look(metrics)
        return metrics | self.group_source.metrics()

    def _actor_metrics(self, metrics: dict[str, float], samples: StepSamples, step: int) -> dict[str, float]:
        """Names what the policy's training says, and shows it to what looks on."""
        metrics |= self.credit.see_kl(metrics, len(samples.meta))
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
            **self.group_source.save(directory, ends=self.interrupts.requested),
            **self.credit.state(),
            "shaping": self.shaping.state(),
            "mix": self.mix.state(),
            "without_signal": self.collapse_alarm.without_signal,
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
        self.credit.load(state, self.changed_keys)
        self.shaping.load(state.get("shaping", []))
        self.collapse_alarm.without_signal = state.get("without_signal", 0)
        source = self.group_source
        self.account.brought(source.restore(directory, state.get(source.state_key), steps_done))
        self.publisher.send(clusters, steps_done)
        source.published(steps_done)

    def close(self) -> None:
        self.loop.close()
        if self.clusters is not None:
            self.clusters.close()
        self.close_buffer()


def _explained(metrics: Mapping[str, float]) -> dict[str, float]:
    explained = explained_variance(metrics)
    return {} if explained is None else {"explained_variance": explained}
