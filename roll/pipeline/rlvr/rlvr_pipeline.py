"""RLVR: single-turn reinforcement learning with verifiable rewards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from roll.algorithms.masking import RowWeightSettings, row_weights
from roll.algorithms.policy_loss import PolicyLoss
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.chosen_rows import row_choice
from roll.datasets.encoding import decoder, load_tasks
from roll.datasets.mixing import TaskMixer
from roll.datasets.sight import sight
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.filters import by_domain, make_filter
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import ConfigError
from roll.models.vision.files import vision_of
from roll.pipeline.rlvr.prompt_rollouter import PromptRollouter
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains, places, read_texts
from roll.rewards.service import RewardPools, RewardsByDomain, RewardService
from roll.rl.evaluation import Validation, ValidationSet
from roll.rl.late_rewards import GroupScorer
from roll.rl.pipeline import RLPipeline
from roll.rl.records.token_records import LoggingBoard
from roll.rl.settings import policy_loss, sampling_params
from roll.rl.step_credit import StepCredit
from roll.run.loop import of_known_length
from roll.types.batch import RowMeta
from roll.types.rollout import SamplingParams, Task, TrajectoryGroup
from roll.utils.imports import resolve

# Credit of rows that weigh in the loss by what is known of them: difficulty, length, format.


class WeightedCredit(StepCredit):
    config: RLVRConfig

    def __init__(self, config: RLVRConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self._weights = row_weight_settings(config)

    def make_policy_loss(self) -> PolicyLoss:
        return policy_loss(self.config, self.plan, self.config.rl_loss_coef)

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        return (None, {}) if self._weights is None else row_weights(meta, self._weights)


SCORERS = {
    "scorer_roles": "roll.pipeline.rlvr.reward_model:RewardModels",
    "judge_roles": "roll.pipeline.rlvr.judge_service:JudgeModels",
}
"""Classes of the models that score answers on devices of the run, by the property of the settings with their roles."""


class ScoringModels(Protocol):
    """Made before any process is started, of the settings, the policy's tokenizer and how the policy sees."""

    def check_pictures(self, domains: Collection[str]) -> None:
        """Raises ConfigError where one is to be shown the pictures of these domains, and cannot be."""
        ...

    def started(
        self, clusters: RLClusters, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> tuple[Mapping[str, RewardService], Mapping[str, GroupScorer]]:
        """Return the services that score during the rollout, and the scorers after it, by domain. `run` waits on the
        loop of the rollouts."""
        ...


logger = logging.getLogger(__name__)


def check_difficulty(tasks: Sequence[Task]) -> None:
    """Raises ConfigError where the data's own difficulty is on another scale than that of difficulty_loss_weight."""
    for task in tasks:
        value = task.payload.get("difficulty")
        if isinstance(value, int | float) and not 0 <= value <= 1:
            raise ConfigError(
                f"difficulty_loss_weight: the column `difficulty` of the data holds {value:g} ({task.task_id}), but "
                "must be from 0 (easy) to 1 (hard). Rescale or rename it: else 1 - the group's mean reward counts."
            )


class RLVRPipeline(RLPipeline):
    """Prompts from files, answers from actor_infer, rewards from a pool of processes per domain."""

    config: RLVRConfig

    def __init__(self, config: RLVRConfig, plan: BatchPlan):
        super().__init__(config, plan)
        self.vision = vision_of(config.actor_train.model_args)  # None: the policy takes text alone
        self.validation_tasks: Sequence[Sequence[Task]] = ()  # by what is validated
        self.scoring_models: list[ScoringModels] = []

    def make_credit(self) -> StepCredit:
        return WeightedCredit(self.config, self.plan)

    def load_validation(self) -> None:
        config = self.config
        classes: list[Any] = [resolve(path) for roles, path in SCORERS.items() if getattr(config, roles)]
        self.scoring_models = [each(config, self.tokenizer, self.vision) for each in classes]
        self.validation_tasks = [
            self._load_tasks(validated.data_args, f"{validated.at}.data_args", self.plan.val_prompt_length)
            for validated in config.validated
        ]
        if self._show(chain(*self.validation_tasks)):
            self.plan = replace(self.plan, validates_pictures=True)

    def load_data(self) -> TaskSource:
        config, plan = self.config, self.plan
        tasks = self._load_tasks(config.actor_train.data_args, "actor_train.data_args", plan.prompt_length)
        if config.difficulty_loss_weight:
            check_difficulty(tasks)
        self.mode.check_tasks(tasks)
        if self._show(tasks):
            plan = self.plan = replace(plan, shows_pictures=True)
        source = TaskMixer(
            tasks,
            block=plan.num_groups,
            seed=config.seed,
            shares=config.actor_train.data_args.domain_interleave_probs,
            shuffle=config.actor_train.data_args.shuffle,
            drop_last=config.actor_train.data_args.drop_last,
        )
        self.config, self.plan = of_known_length(config, plan, source.num_tasks, plan.num_groups)
        return source

    def _show(self, tasks: Iterable[Task]) -> bool:
        """Whether a task shows pictures. Raises ConfigError where a role cannot take them."""
        domains = {task.domain for task in tasks if task.pictures}
        if domains:
            sight().check_shown(self.config, "actor_train", self.vision, of_text=self.config.scorers_without(domains))
            for models in self.scoring_models:
                models.check_pictures(domains)
        return bool(domains)

    def build(self) -> None:
        config = self.config
        if not config.has_rollouts and self.vision is not None:  # what experience shows is known when it is read
            self.plan = replace(self.plan, shows_pictures=True)
        logger.info("starting Ray")
        self.clusters = RLClusters(config, self.plan, on_lost=self.interrupts.fail)
        if config.uses_engines:
            self._build_rollouts().wait_ready()
        else:
            self.scheduler = self.mode.source(filters=self.group_filter() is not None)
        if config.has_training and config.save_logging_board_dir is not None:
            self.records.board = LoggingBoard(Path(config.save_logging_board_dir), self.tokenizer)
        self.clusters.wait_ready()
        self.accounting.watch(self.clusters)

    def _build_rollouts(self) -> RewardPools:
        """Build the parts that sample, reward and validate."""
        config, clusters = self.config, self.running
        pools = RewardPools(clusters, config.pool_rewards)
        services: dict[str, RewardService] = dict.fromkeys(config.rewards, pools)
        scorers: dict[str, GroupScorer] = {}
        for models in self.scoring_models:
            during, after = models.started(clusters, self.loop.run)
            services |= during
            scorers |= after
        if config.after_rollout_domains:
            self.late_rewards.use(scorers, clusters.placement.hold)
        rewards = RewardsByDomain(services)
        self.validation = self._validation(rewards)
        if config.has_rollouts:
            self.scheduler = self._scheduler(rewards)
        return pools

    def _validation(self, rewards: RewardService) -> Validation:
        response_length = self.plan.val_response_length
        sets = [
            ValidationSet(
                keys.name,
                tasks,
                replace(
                    self._rollouter(
                        rewards,
                        sampling_params(keys.generating_args, response_length),
                        keys.data_args,
                        self.plan.val_prompt_length,
                    ),
                    group_size=keys.generating_args.num_return_sequences or 1,
                    purpose=keys.purpose,
                ),
                keys.pass_at,
            )
            for keys, tasks in zip(self.config.validated, self.validation_tasks, strict=True)
        ]
        return Validation(sets, self.config.val_batch_size)

    def _rollouter(
        self, rewards: RewardService, sampling: SamplingParams, data: DataArgs, most_tokens: int
    ) -> PromptRollouter:
        """`most_tokens`: of a prompt."""
        config, vision = self.config, self._vision(data)
        make_prompt = None if vision is None else sight().make_prompt(vision, most_tokens)
        return PromptRollouter(
            rewards=rewards,
            decode=decoder(self.tokenizer),
            decode_raw=decoder(self.tokenizer, skip_special_tokens=False),
            sampling=sampling,
            group_size=self.plan.group_size,
            seed=config.seed,
            after_rollout=config.after_rollout_domains,
            max_length=config.engine_length,
            make_prompt=make_prompt,
        )

    def _scheduler(self, rewards: RewardService) -> RolloutScheduler:
        config, plan, engines = self.config, self.plan, self.running.actor_infer
        sampling = sampling_params(config.actor_infer.generating_args, plan.response_length)
        more = {"redundancy": config.group_size_redundancy, "is_compared": config.estimator.needs_greedy}
        train = replace(self._rollouter(rewards, sampling, config.actor_train.data_args, plan.prompt_length), **more)
        return RolloutScheduler(
            self.loop,
            self.for_training(train),
            engines.generate,
            self.source,
            SchedulerSettings(
                plan.bounds,
                max_failed_fraction=config.max_failed_fraction,
                max_replacements=plan.num_groups if config.is_use_additional_prompts else 0,
                num_steps=config.max_steps,
            ),
            self.group_filter(),
            fetched,
            engines.cut.take,
            metrics=engines.metrics,
        )

    def group_filter(self) -> Keep | None:
        filters = {domain: reward.query_filter_config for domain, reward in self.config.rewards.items()}
        if all(keys.type == "no_filter" for keys in filters.values()):
            return None
        return by_domain({domain: make_filter(keys.type, keys.filter_args) for domain, keys in filters.items()})

    def _load_tasks(self, args: DataArgs, key: str, max_prompt_tokens: int) -> Sequence[Task]:
        config = self.config
        domains, template = data_domains(config), config.global_template
        by_tag = config.tag_to_template
        vision = self._vision(args)
        choose = row_choice(places(config), key, read_texts(config, vision), self.tokenizer)
        return load_tasks(args, key, domains, self.tokenizer, max_prompt_tokens, template, by_tag, choose, vision).tasks

    def _vision(self, args: DataArgs) -> VisionModel | None:
        """How the policy sees the pictures of these rows."""
        return None if self.vision is None else self.vision.with_limits(args.image_min_pixels, args.image_max_pixels)

    def _rollout_metrics(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        engines = [engine for role in self.config.judge_roles if (engine := self.running.engines.get(role)) is not None]
        restarts = [judge.recovery.num_restarts for judge in engines if judge.recovery is not None]
        metrics = {"rollout/judge_restarted_engines": float(sum(restarts))} if restarts else {}
        return super()._rollout_metrics(groups, trained, step) | metrics

    def evaluate(self, steps_done: int) -> dict[str, float]:
        if self.validation is None or not self.validation_tasks:
            return {}
        with self.engines_held():
            groups = self.loop.run(self.validation.answer(self.running.actor_infer.generate))
        groups = self.late_rewards.complete(groups)
        for name, answered in self.validation.by_set(groups).items():
            self.records.write(steps_done, answered, kind=f"val.{name}" if name else "val")
        return self.validation.metrics(groups)


def row_weight_settings(config: RLVRConfig) -> RowWeightSettings | None:
    """None when every row counts alike."""
    chosen = RowWeightSettings(**{each.name: config.value(each.name) for each in fields(RowWeightSettings)})
    switches = ("max_len_mask", "difficulty_mask", "error_max_len_clip", "length_loss_weight", "difficulty_loss_weight")
    return chosen if any(getattr(config, name) for name in switches) else None
