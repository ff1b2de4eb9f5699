"""Builds the rules of episodes, groups and credit from an agentic configuration."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from roll.algorithms.advantage import AdvantageSettings
from roll.algorithms.episodes import EpisodeSettings
from roll.envs.questions import load_rows
from roll.errors import EnvError, describe
from roll.pipeline.agentic.agentic_config import AgenticConfig, EnvManagerConfig
from roll.pipeline.agentic.episode import TRAINING, EpisodeRules
from roll.rl import settings
from roll.types.rollout import TrajectoryGroup
from roll.utils.imports import resolve

_GRACE_S = 30.0
_NO_LIMIT_S = 1e8


def manager_of(config: AgenticConfig, purpose: str) -> EnvManagerConfig:
    if purpose == TRAINING:
        return config.train_env_manager
    return next(validated.manager for validated in config.validated if validated.purpose == purpose)


def episode_rules(config: AgenticConfig, tag: str, purpose: str) -> EpisodeRules:
    """How episodes of this tag are played. Validation has sampling and lengths of its own."""
    manager, env = manager_of(config, purpose), config.custom_envs[tag]
    keys = config.actor_infer.generating_args if purpose == TRAINING else manager.generating_args
    longest = config.lengths[2] if purpose == TRAINING else config.val_lengths[2]
    step_timeout_s, episode_timeout_s = config.timeouts(manager)
    limits = [n for n in (env.max_tokens_per_step, keys.max_new_tokens) if n is not None]
    return EpisodeRules(
        config=env,
        sampling=settings.sampling_params(keys, longest),
        max_length=min(longest, config.engine_length or longest),
        max_answer_tokens=min(limits, default=None),
        format_penalty=manager.format_penalty if env.format_penalty is None else env.format_penalty,
        seed=config.seed,
        step_timeout_s=step_timeout_s,
        episode_timeout_s=episode_timeout_s,
        retries=manager.env_retries,
    )


def job_limit_s(config: AgenticConfig, purpose: str) -> float:
    """Seconds after which a silent worker is given up: more than all limits of the worker itself."""
    manager = manager_of(config, purpose)
    step_s, episode_s = config.timeouts(manager)
    if episode_s is None:
        return _NO_LIMIT_S
    return (episode_s + (step_s or 0.0)) * (1 + manager.env_retries) + _GRACE_S


def num_questions(config: AgenticConfig) -> int | None:
    """The rows of all data files that are asked in the training, by which epochs are steps. None where the run is given
    its steps, or an environment has no rows. Raises EnvError for a file that cannot be read."""
    if not (config.counts_epochs and config.can_count_rows):
        return None
    envs = [config.custom_envs[tag] for tag in config.domains]
    files = {
        (str(env.env_config["dataset_name"]), env.env_config.get("split", "train"), env.env_config.get("subset"))
        for env in envs
    }
    return sum(len(load_rows(*file)) for file in files)


def episode_settings(config: AgenticConfig) -> EpisodeSettings:
    mean, std = config.reward_norms
    return EpisodeSettings(
        advantages=AdvantageSettings(
            config.adv_estimator,
            mean,  # type: ignore[arg-type]
            std,  # type: ignore[arg-type]
            config.reward_clip,
            config.reward_normalization.limits,
            config.estimator_args,
        ),
        turn_gamma=config.value(config.estimator.discount),
        episode_weight=config.episode_reward_weight,
        step_weight=config.step_reward_weight,
        by_domain=config.reward_normalization.by_tag,
    )


# Which groups of episodes are worth training on: `group_filter_cls`.

GroupFilter = Callable[[TrajectoryGroup], bool]


class DropEqualRewards:
    """Drops groups whose episodes all earned the same, each side for itself: nothing can be learned from comparing
    them."""

    def __call__(self, group: TrajectoryGroup) -> bool:
        by_side = (side.rewards[~np.isnan(side.rewards)] for side in group.by_side)
        return any(len(rewards) < 2 or bool(rewards.max() > rewards.min()) for rewards in by_side)


def load_filter(path: str) -> GroupFilter:
    """The filter that `package.module:object` names; a class is made into an object. Raises ImportError, TypeError.
    Whatever the filter raises comes as EnvError."""
    resolved: Any = resolve(path)
    keep: Any = resolved() if inspect.isclass(resolved) else resolved
    if not callable(keep):
        raise TypeError(f"{path} cannot be called")

    def keeps(group: TrajectoryGroup) -> bool:
        try:
            return bool(cast(GroupFilter, keep)(group))
        except BaseException as error:
            text = f"group_filter_cls: {path} raised {describe(error)}, for the group of {group.task.task_id}"
            raise EnvError(f"{text} with the rewards {group.rewards.tolist()}.") from error

    return keeps


def filter_problems(path: str, key: str) -> list[str]:
    try:
        load_filter(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [f"{key}: {error if isinstance(error, ImportError | TypeError) else describe(error)}."]
    return []
