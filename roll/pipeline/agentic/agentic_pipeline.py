"""Agentic runs: episodes of several turns in environments, on the same step as every other run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.pools.job import FatalJobError, Job
from roll.distributed.executor.pools.job_pool import JobPool
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS
from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.envs.table import ENVIRONMENTS
from roll.errors import EnvError
from roll.pipeline.agentic.agentic_config import ROLE, AgenticConfig
from roll.pipeline.agentic.baselines import baselines
from roll.pipeline.agentic.env_rollouter import EnvRollouter, EnvTaskSource, Played
from roll.pipeline.agentic.env_sets import ValidatedEnvs
from roll.pipeline.agentic.episode import TRAINING, Counts, CutEpisode, EpisodeJob, failed_row
from roll.pipeline.agentic.episode_credit import EpisodeCredit
from roll.pipeline.agentic.episode_metrics import CRASHES, HANGS, episode_metrics
from roll.pipeline.agentic.group_filters import load_filter
from roll.pipeline.agentic.proxy.metrics import agentic_metrics
from roll.pipeline.agentic.settings import job_limit_s, manager_of, num_questions
from roll.rl.pipeline import RLPipeline
from roll.rl.scoring import StepSamples
from roll.rl.step_credit import StepCredit
from roll.rl.validation import Validation, ValidationSet
from roll.run.length import of_known_length
from roll.types.collate import placed
from roll.types.rollout import Task, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

_WORKER = "roll.pipeline.agentic.env_worker:EnvWorker"


class AgenticPipeline(RLPipeline):
    """Environments and the episodes in them live in worker processes, which reach the engines by themselves; the driver
    sees finished episodes."""

    config: AgenticConfig

    def __init__(self, config: AgenticConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self.job_pool: JobPool | None = None  # there once it is built

    def make_credit(self) -> StepCredit:
        return EpisodeCredit(self.config, self.plan)

    def load_data(self) -> TaskSource:
        if (questions := num_questions(self.config)) is not None:
            self.config, self.plan = of_known_length(self.config, self.plan, questions, self.plan.num_groups)
        return EnvTaskSource(self.config.train_env_manager.slots, self.config.train_seeds, self.config.seed)

    def build(self) -> None:
        config = self.config
        logger.info("starting Ray")
        self.clusters = RLClusters(config, self.plan, on_lost=self.interrupts.fail)
        if config.samples:
            self._build_rollouts(self.clusters)
        else:
            self.scheduler = self.mode.source(filters=self.keep() is not None)
        self.clusters.wait_ready()
        self.account.watch(self.clusters)

    def _build_rollouts(self, clusters: RLClusters) -> None:
        """What plays episodes, and what is played for validation."""
        config = self.config
        self.job_pool = clusters.start_job_pool(
            ROLE, config.cpu_roles[ROLE], _WORKER, (clusters.config,), config.jobs_per_worker, _placed
        )
        if config.explores:
            self.scheduler = self._scheduler()
        if config.validated:
            self.validation = self._validation(config.validated)
        self.environments.wait_ready()

    @property
    def environments(self) -> JobPool:
        """The workers that play episodes, once they are built."""
        assert self.job_pool is not None
        return self.job_pool

    def _scheduler(self) -> RolloutScheduler:
        config, plan, manager = self.config, self.plan, self.config.train_env_manager
        train = self._rollouter(TRAINING)
        return RolloutScheduler(
            self.loop,
            self.for_training(train),
            self.running.actor_infer.generate,
            self.source,
            SchedulerSettings(
                plan.bounds,
                max_failed_fraction=config.max_failed_fraction,
                max_replacements=config.max_replacements,
                num_steps=config.max_steps,
                max_running=manager.num_env_groups,
            ),
            self.keep(),
            fetched,
            train.take_cut,
            spans=self.account.spans,
            metrics=self.running.actor_infer.metrics,
        )

    def keep(self) -> Keep | None:
        path = self.config.train_env_manager.group_filter_cls
        return load_filter(path) if path else None

    def _validation(self, validated: Sequence[ValidatedEnvs]) -> Validation:
        sets = []
        for one in validated:
            source = EnvTaskSource(one.manager.slots, one.seeds, self.config.seed)
            tasks = source.fixed_tasks(one.num_episodes // one.manager.group_size)
            sets.append(ValidationSet(one.name, tasks, self._rollouter(one.purpose), one.pass_at))
        return Validation(sets, validated[0].manager.num_env_groups)

    def _rollouter(self, purpose: str) -> EnvRollouter:
        manager, limit_s = manager_of(self.config, purpose), job_limit_s(self.config, purpose)
        return EnvRollouter(
            partial(play_in, self.environments, limit_s),
            lambda job: self.environments.stop(job.name),
            manager.group_size,
            manager.group_size_redundancy,
            purpose=purpose,
        )

    def collect(self, step: int) -> StepGroups:
        """Collects the groups of a step. With redundancy, stopped episodes may still be sampling; the engines are
        aborted unless other groups use them."""
        groups = super().collect(step)
        if self.config.samples and self.config.train_env_manager.group_size_redundancy and not self.config.runs_ahead:
            self.running.actor_infer.abort()
        return groups

    def gather(self, groups: StepGroups, step: int) -> tuple[StepSamples | None, Sequence[TrajectoryGroup]]:
        sampled = groups.sampled
        if all(trajectory.failure for group in sampled for trajectory in group.trajectories):
            raise EnvError(f"step {step}: every episode failed: {sampled[0].trajectories[0].failure}")
        return super().gather(groups, step)

    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        metrics = super().report(groups, trained, step)
        for name in (CRASHES, HANGS):  # told below, as sums
            metrics.pop(f"rollout/{name}_mean", None)
        metrics |= episode_metrics(groups.sampled, "env") | agentic_metrics(groups.sampled)
        if not self.config.samples:
            return metrics
        if RETRIED_REQUESTS in metrics:
            metrics[RETRIED_REQUESTS] += self.environments.counts[RETRIED_REQUESTS]
        return metrics | {"env/restarted_workers": float(self.environments.num_restarts)}

    def chosen_rows(self, num_rows: int, multiple: int, random: np.random.Generator) -> np.ndarray:
        """`padding` as ever; the other modes of batch_adjust_mode repeat rows or leave some out."""
        mode = self.config.batch_adjust_mode
        if mode == "padding" or (mode != "random_sample" and num_rows % multiple == 0):
            return super().chosen_rows(num_rows, multiple, random)
        planned = -(-self.plan.samples_per_step // multiple) * multiple
        return adjusted_rows(mode, num_rows, multiple, planned, random)

    def evaluate(self, steps_done: int) -> dict[str, float]:
        if self.validation is None:
            return {}
        clusters = self.running
        with clusters.placement.hold(clusters.actor_infer.everything):
            groups = self.loop.run(self.validation.answer(clusters.actor_infer.generate))
        metrics = self.validation.metrics(groups)
        for name, played in self.validation.by_set(groups).items():
            kind, prefix = (f"val.{name}", f"val/{name}") if name else ("val", "val")
            self.records.write(steps_done, played, kind)
            metrics |= episode_metrics(played, prefix)
            if steps_done == 0:
                metrics |= self._baselines([group.task for group in played], prefix)
        return metrics

    def _baselines(self, tasks: Sequence[Task], prefix: str) -> dict[str, float]:
        """Success without a policy, in these environments of a validation; of shipped ones only, since they are played
        here."""
        metrics: dict[str, float] = {}
        for tag in dict.fromkeys(task.domain for task in tasks):
            env = self.config.custom_envs[tag]
            if env.env_type not in ENVIRONMENTS or not self.config.baseline_episodes:
                continue
            seeds = [int(str(task.payload["env_seed"])) for task in tasks if task.domain == tag]
            found = baselines(env, seeds[: self.config.baseline_episodes])
            metrics |= {f"{prefix}/{tag}/success_{name}_baseline": value for name, value in found.items()}
            if found:
                text = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
                logger.info("%s: success without a policy: %s", f"{prefix}/{tag}", text)
        return metrics


def _placed(result: Sequence[Trajectory] | CutEpisode, handles: Sequence[object]) -> Played:
    return result if isinstance(result, CutEpisode) else placed(result, handles)


async def play_in(pool: JobPool, limit_s: float, job: EpisodeJob) -> Played:
    """An episode whose environment takes every process with it is a failed one, as if it had raised; so is one over
    which its process falls silent. That the workers cannot play at all raises WorkerError."""
    try:
        return await pool.run(Job(job.name, job, limit_s, is_first=job.purpose != TRAINING))
    except FatalJobError as error:
        return [failed_row(job.index, f"{job.tag}: {error}", Counts(crashes=1).metrics())]


def adjusted_rows(mode: str, rows: int, multiple: int, planned: int, random: np.random.Generator) -> np.ndarray:
    """Row ids to train on, a multiple of `multiple`, by the mode of batch_adjust_mode.

    Example: 10 rows, multiple 4: copy has 12 (two of them twice), delete has 8, auto 12 or 8 (as near: 8).
    """
    missing, surplus = -rows % multiple, rows % multiple
    every = np.arange(rows)
    if mode == "random_sample":
        drawn = random.permutation(every)[:planned]
        missing = planned - len(drawn)
        return np.concatenate([drawn, random.choice(rows, missing)]) if missing else drawn
    if mode == "delete" or (mode == "auto" and surplus <= missing):
        kept = rows - surplus
        if kept:
            return np.sort(random.permutation(every)[:kept])
    return np.concatenate([every, random.choice(rows, missing, replace=missing > rows)])
