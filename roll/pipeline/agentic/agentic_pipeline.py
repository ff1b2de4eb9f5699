"""Agentic runs: episodes of several turns in environments, on the same step as every other run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roll.algorithms.credit import CreditSettings, TurnValues
from roll.algorithms.episodes import episode_advantages, turn_advantages
from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.pools.job import FatalJobError, Job
from roll.distributed.executor.pools.job_pool import JobPool
from roll.distributed.executor.processes.node_facts import own_address
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS
from roll.distributed.executor.step_rows import StepSamples, fetched
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import ConfigError, EnvError, describe
from roll.models.vision.files import vision_of
from roll.pipeline.agentic.agentic_config import ROLE, AgenticConfig, ValidatedEnvs
from roll.pipeline.agentic.env_checks import blind_problem, has_outside_programs, shows_pictures
from roll.pipeline.agentic.env_rollouter import EnvRollouter, EnvTaskSource, Played
from roll.pipeline.agentic.episode import (
    CRASHES,
    HANGS,
    TRAINING,
    AbortedEpisode,
    Counts,
    EpisodeJob,
    episode_metrics,
    failed_row,
)
from roll.pipeline.agentic.proxy.metrics import agentic_metrics
from roll.pipeline.agentic.settings import episode_settings, job_limit_s, load_filter, manager_of, num_questions
from roll.rl.evaluation import Validation, ValidationSet
from roll.rl.pipeline import RLPipeline
from roll.rl.step_credit import StepCredit
from roll.run.loop import of_known_length
from roll.run.start.shown_models import check_shown
from roll.types.batch import RowMeta
from roll.types.collate import placed
from roll.types.failures import causes_of
from roll.types.rollout import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from roll.pipeline.agentic.proxy.outside.front import Front, FrontAddress

# Credit of episodes: of whole ones, or of their turns.


class EpisodeCredit(StepCredit):
    def __init__(self, config: AgenticConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self._episodes = episode_settings(config)
        self._mode = config.loss_agg_mode
        self._sessions = [tag for tag, env in config.custom_envs.items() if env.is_session]

    def row_values(self, meta: RowMeta) -> tuple[np.ndarray, TurnValues | None, dict[str, float]]:
        if not self._episodes.is_per_turn:
            values, metrics = episode_advantages(meta, self._episodes)
            return values, None, metrics
        turns, metrics = turn_advantages(meta, self._episodes)
        assert meta.num_turns is not None
        return np.zeros(len(meta), np.float32), TurnValues(meta.num_turns, turns), metrics

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        """Return the weights of rows, so that attempts cut into several rows (because a program or a chat template
        rewrites the history) do not count more."""
        weights, metrics = super().row_weights(meta)
        is_cut = np.isin(meta.domains, self._sessions)
        if not is_cut.any() or self._mode == "token-mean":
            return weights, metrics
        shares = shared_weights(meta, is_cut, self._mode)
        return shares if weights is None else weights * shares, metrics

    def token_settings(self, step: int) -> CreditSettings:
        """Estimators that work by turn have discounted already."""
        chosen = replace(super().token_settings(step), keeps_zero=self._episodes.advantages.compares_groups)
        return replace(chosen, gamma=1.0) if self._episodes.is_per_turn else chosen


def shared_weights(meta: RowMeta, is_cut: np.ndarray, mode: str) -> np.ndarray:
    """The loss weight of every row with which an attempt that was cut into rows has the policy loss that it would have
    in one: of the rows of `is_cut` (bool [R]) those of an attempt share its weight by how many tokens they train, where
    the mode takes the mean of a row. Any other row stands for itself. Row counts are the step's. float32 [R].

    Example (seq-mean-token-mean): an attempt of 3 + 1 tokens in two rows and one of 4 in one: 1.125, .375 and 1.5,
    which sum to the three rows that the loss is divided by, and are 3/4 : 1/4 : 1.
    """
    lengths = meta.response_lengths.astype(np.float64)
    present = lengths > 0
    _, attempts = np.unique(meta.trajectory_ids, return_inverse=True)
    totals = np.bincount(attempts, lengths)[attempts]
    shares = np.where(is_cut & present, lengths / np.maximum(totals, 1.0), 1.0)
    scale = present.sum() / max(shares[present].sum(), 1.0)
    return (scale * (shares if mode == "seq-mean-token-mean" else np.ones_like(shares))).astype(np.float32)


logger = logging.getLogger(__name__)

_WORKER = "roll.pipeline.agentic.env_worker:EnvWorker"


class AgenticPipeline(RLPipeline):
    """Environments and the episodes in them live in worker processes, which reach the engines by themselves; the driver
    sees finished episodes."""

    config: AgenticConfig

    def __init__(self, config: AgenticConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self.job_pool: JobPool | None = None  # there once it is built
        self._front: Front | None = None
        self._front_loop: EventLoopThread | None = None

    def make_credit(self) -> StepCredit:
        return EpisodeCredit(self.config, self.plan)

    def load_data(self) -> TaskSource:
        if (key := shows_pictures(self.config)) is not None:
            if (vision := vision_of(self.config.actor_train.model_args)) is None:
                raise ConfigError(blind_problem(key, self.config))
            check_shown(self.config, "actor_train", vision, key)
            self.plan = replace(self.plan, shows_pictures=True)
        if (questions := num_questions(self.config)) is not None:
            self.config, self.plan = of_known_length(self.config, self.plan, questions, self.plan.num_groups)
        return EnvTaskSource(self.config.train_env_manager.slots, self.config.train_seeds, self.config.seed)

    def build(self) -> None:
        config = self.config
        logger.info("starting Ray")
        self.clusters = RLClusters(config, self.plan, on_lost=self.interrupts.fail)
        if config.uses_engines:
            self._build_rollouts(self.clusters)
        else:
            self.scheduler = self.mode.source(filters=self.group_filter() is not None)
        self.clusters.wait_ready()
        self.accounting.watch(self.clusters)

    def _build_rollouts(self, clusters: RLClusters) -> None:
        config = self.config
        front = self._open_front() if has_outside_programs(config) else None
        self.job_pool = clusters.start_job_pool(
            ROLE, config.cpu_roles[ROLE], _WORKER, (clusters.config, front), config.jobs_per_worker, _placed
        )
        if config.has_rollouts:
            self.scheduler = self._scheduler()
        if config.validated:
            self.validation = self._validation(config.validated)
        self.environments.wait_ready()

    def _open_front(self) -> FrontAddress:
        """Opens the port at which programs from outside take sessions. Raises EnvError if it is taken."""
        from roll.pipeline.agentic.proxy.outside.front import Front  # brings fastapi

        keys = self.config.agent_endpoint
        assert keys.listen is not None, "checked with the configuration"
        self._front_loop = EventLoopThread("roll_agent_endpoint")
        self._front = Front(keys.listen, Path(self.config.output_dir))
        try:
            return self._front_loop.run(self._front.start(own_address()))
        except OSError as error:
            raise EnvError(f"agent_endpoint.listen: {keys.listen} cannot be bound: {describe(error)}") from None

    def close(self) -> None:
        try:
            if self._front is not None and self._front_loop is not None:
                self._front_loop.run(self._front.stop())
                self._front_loop.close()
        finally:
            super().close()

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
            self.group_filter(),
            fetched,
            train.take_cut,
            metrics=self.running.actor_infer.metrics,
        )

    def group_filter(self) -> Keep | None:
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
        if (
            self.config.uses_engines
            and self.config.train_env_manager.group_size_redundancy
            and not self.config.is_async
        ):
            self.running.actor_infer.abort()
        return groups

    def gather(self, groups: StepGroups, step: int) -> tuple[StepSamples | None, Sequence[TrajectoryGroup]]:
        sampled = groups.sampled
        if all(trajectory.failure for group in sampled for trajectory in group.trajectories):
            causes = "\n".join(map(str, causes_of(sampled)[:3]))
            raise EnvError(f"step {step}: every episode failed:\n{causes}")
        return super().gather(groups, step)

    def report(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        metrics = super().report(groups, trained, step)
        for name in (CRASHES, HANGS):  # told below, as sums
            metrics.pop(f"rollout/{name}_mean", None)
        metrics |= episode_metrics(groups.sampled, "env") | agentic_metrics(groups.sampled)
        if not self.config.uses_engines:
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
        with self.engines_held():
            groups = self.loop.run(self.validation.answer(self.running.actor_infer.generate))
        metrics = self.validation.metrics(groups)
        for name, of_set in self.validation.by_set(groups).items():
            kind, prefix = (f"val.{name}", f"val/{name}") if name else ("val", "val")
            self.records.write(steps_done, of_set, kind)
            metrics |= episode_metrics(of_set, prefix)
        return metrics


def _placed(result: Sequence[Trajectory] | AbortedEpisode, handles: Sequence[object]) -> Played:
    return result if isinstance(result, AbortedEpisode) else placed(result, handles)


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
        num_kept = rows - surplus
        if num_kept:
            return np.sort(random.permutation(every)[:num_kept])
    return np.concatenate([every, random.choice(rows, missing, replace=missing > rows)])
