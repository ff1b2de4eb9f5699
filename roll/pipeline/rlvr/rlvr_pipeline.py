"""RLVR: single-turn reinforcement learning with verifiable rewards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roll.algorithms.masking import row_weights
from roll.configs.data import DataArgs
from roll.configs.plan.batch_plan import BatchPlan
from roll.datasets.encoding import decoder, load_tasks
from roll.datasets.mixing import TaskMixer
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.step_rows import fetched
from roll.distributed.scheduler.filters import by_domain, make_filter
from roll.distributed.scheduler.numbered_tasks import TaskSource
from roll.distributed.scheduler.rollout_core import Keep, StepGroups
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.errors import ConfigError
from roll.pipeline.base_pipeline import RLPipeline
from roll.pipeline.evaluation import validation_metrics
from roll.pipeline.late_rewards import GroupScorer, LateRewards
from roll.pipeline.length import of_known_length
from roll.pipeline.logging_board import LoggingBoard
from roll.pipeline.policy_tokenizer import policy_tokenizer
from roll.pipeline.rlvr.judge.engine import JudgeText
from roll.pipeline.rlvr.judge.service import EngineJudges, LateJudge
from roll.pipeline.rlvr.prompt_rollouter import PromptRollouter
from roll.pipeline.rlvr.reward_model import RewardModel, answer_readers
from roll.pipeline.rlvr.reward_service import RewardPools, RewardsByDomain
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.settings import data_domains, row_weight_settings
from roll.pipeline.settings import policy_loss, sampling_params
from roll.types.batch import RowMeta
from roll.types.rollout import Task, TrajectoryGroup

logger = logging.getLogger(__name__)

_GIVE_UP_S = 60.0  # in which engines hand over what they have of answers when the run ends, where nobody hurries


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
        self.policy_loss = policy_loss(config, plan, config.rl_loss_coef)
        self.row_weight_settings = row_weight_settings(config)
        self.validation_tasks: Sequence[Task] = ()
        self.judge_texts: Mapping[str, JudgeText] = {}

    def load_data(self) -> TaskSource:
        config, plan = self.config, self.plan
        self.tokenizer = policy_tokenizer("actor_train", config.actor_train.model_args)
        self.answer_readers = answer_readers(config, self.tokenizer)
        self.judge_texts = {role: JudgeText.load(role, worker) for role, worker in config.judge_roles.items()}
        tasks = self._load_tasks(config.actor_train.data_args, "actor_train.data_args", plan.prompt_length)
        if config.difficulty_loss_weight:
            check_difficulty(tasks)
        if config.validation is not None:
            self.validation_tasks = self._load_tasks(
                config.validation.data_args, "validation.data_args", plan.val_prompt_length
            )
        source = TaskMixer(
            tasks,
            block=plan.num_groups,
            seed=config.seed,
            shares=config.actor_train.data_args.domain_interleave_probs,
            shuffle=config.actor_train.data_args.shuffle,
        )
        self.config, self.plan = of_known_length(config, plan, source.num_tasks, plan.num_groups)
        return source

    def build(self) -> None:
        config, plan = self.config, self.plan
        logger.info("starting Ray")
        self.clusters = RLClusters(config, plan, on_lost=self.interrupts.fail)
        pools = RewardPools(self.clusters, config.pool_rewards)
        judges = EngineJudges(config, self.clusters.engines, self.judge_texts)
        rewards = RewardsByDomain({domain: judges if domain in config.judge_of else pools for domain in config.rewards})
        late = config.late_domains
        if late:
            self.late_rewards = LateRewards(self._late_scorers(judges), self.clusters.placement.hold)
        train = PromptRollouter(
            rewards=rewards,
            decode=decoder(self.tokenizer),
            decode_raw=decoder(self.tokenizer, skip_special_tokens=False),
            sampling=sampling_params(config.actor_infer.generating_args, plan.response_length),
            group_size=plan.group_size,
            seed=config.seed,
            late=late,
            redundancy=config.group_size_redundancy,
            max_length=config.engine_length,
        )
        if config.validation is not None:
            keys = config.validation
            self.validation_rollouter = PromptRollouter(
                rewards=rewards,
                decode=decoder(self.tokenizer),
                decode_raw=decoder(self.tokenizer, skip_special_tokens=False),
                sampling=sampling_params(keys.generating_args, plan.val_response_length),
                group_size=keys.generating_args.num_return_sequences or 1,
                seed=config.seed,
                purpose="validation",
                late=late,
                max_length=config.engine_length,
            )
        if config.save_logging_board_dir is not None:
            self.board = LoggingBoard(Path(config.save_logging_board_dir), self.tokenizer)
        self.scheduler = RolloutScheduler(
            self.loop,
            self.for_training(train),
            self.clusters.actor_infer.generate,
            self.source,
            SchedulerSettings(
                plan.bounds,
                max_failed_fraction=config.max_failed_fraction,
                max_replacements=plan.num_groups if config.is_use_additional_prompts else 0,
                num_steps=config.max_steps,
            ),
            self._keep(),
            fetched,
            self.clusters.actor_infer.cut.take,
            spans=self.account.spans,
            give_up=partial(self.clusters.actor_infer.give_up, config.interrupt_timeout / 4 or _GIVE_UP_S),
        )
        pools.wait_ready()
        self.clusters.wait_ready()
        self.account.watch(self.clusters)

    def _late_scorers(self, judges: EngineJudges) -> dict[str, GroupScorer]:
        """Of the domains whose rewards come after the rollout."""
        config, clusters = self.config, self.running
        models = {role: RewardModel(self.answer_readers[role], clusters.scorers[role]) for role in config.scorer_roles}
        scorers: dict[str, GroupScorer] = {domain: models[role] for domain, role in config.scorer_of.items()}
        in_turn = {domain: role for domain, role in config.judge_of.items() if domain in config.late_domains}
        late = {role: LateJudge(clusters.engines[role], judges, self.loop.run) for role in in_turn.values()}
        return scorers | {domain: late[role] for domain, role in in_turn.items()}

    def _keep(self) -> Keep | None:
        filters = {domain: reward.query_filter_config for domain, reward in self.config.rewards.items()}
        if all(keys.type == "no_filter" for keys in filters.values()):
            return None
        return by_domain({domain: make_filter(keys.type, keys.filter_args) for domain, keys in filters.items()})

    def _load_tasks(self, args: DataArgs, key: str, max_prompt_tokens: int) -> Sequence[Task]:
        config = self.config
        domains, template = data_domains(config), config.global_template
        by_tag = config.tag_to_template
        return load_tasks(args, key, domains, self.tokenizer, max_prompt_tokens, template, by_tag).tasks

    def _rollout_metrics(self, groups: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        engines = [self.running.engines[role] for role in self.config.judge_roles]
        restarts = [judge.recovery.num_restarts for judge in engines if judge.recovery is not None]
        found = {"rollout/judge_restarted_engines": float(sum(restarts))} if restarts else {}
        return super()._rollout_metrics(groups, trained, step) | found

    def row_weights(self, meta: RowMeta) -> tuple[np.ndarray | None, dict[str, float]]:
        if self.row_weight_settings is None:
            return None, {}
        return row_weights(meta, self.row_weight_settings)

    def evaluate(self, steps_done: int) -> dict[str, float]:
        if not self.validation_tasks:
            return {}
        clusters = self.running
        with clusters.placement.hold(clusters.actor_infer.everything):
            groups = self.loop.run(self._answer_validation(steps_done))
        if self.late_rewards is not None:
            groups = self.late_rewards.complete(groups)
        self._record(steps_done, groups, kind="val")
        return validation_metrics(groups)

    async def _answer_validation(self, steps_done: int) -> list[TrajectoryGroup]:
        """All validation tasks, `val_batch_size` in flight. The seed does not depend on the step: changes are the
        model's."""
        room = asyncio.Semaphore(self.config.val_batch_size)
        generate = self.running.actor_infer.generate

        async def answer(index: int, task: Task) -> TrajectoryGroup:
            async with room:
                return await self.validation_rollouter.run_group(task, index, 0, generate)

        return await asyncio.gather(*(answer(i, task) for i, task in enumerate(self.validation_tasks)))

    def save(self, directory: Path) -> dict[str, Any]:
        state = super().save(directory)
        self.tokenizer.save_pretrained(directory / "hf_model")
        return state
