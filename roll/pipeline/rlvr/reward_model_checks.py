"""What can be wrong with the reward models of a run, and with the keys of domains whose answers they score."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.load.aliases import REWARD_MODEL
from roll.configs.load.validate import validate
from roll.configs.problems import Problem
from roll.pipeline.rlvr.rlvr_config import REWARD, RLVRConfig
from roll.rewards.config import RewardConfig, RewardModelArgs

NOT_TAKEN = (
    "format_pattern",
    "reward_type",
    "response_length_penalty_coef",
    "reward_manager_config",
    "reward_retries",
    "dynamic_timeout.enable",
)


def reward_model_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Whatever the machine."""
    for domain, worker in config.rewards.items():
        at = f"rewards.{domain}"
        yield from _one_domain(config, at, worker) if worker.is_model else _part_problems(at, worker)


def reward_model_warnings(config: RLVRConfig) -> list[str]:
    if config.reward is not None and REWARD.name not in config.scorer_roles:
        return ["reward is not started: no domain of rewards has `reward: reward_model` without strategy_args."]
    return []


def _one_domain(config: RLVRConfig, at: str, worker: RewardConfig) -> Iterator[Problem]:
    if not worker.has_own_model and config.reward is None:
        yield Problem(
            f"{at}.strategy_args is missing: it names what runs the reward model, such as `strategy_name: hf_infer`. "
            "Or add a section `reward`, whose model then scores all domains that have no strategy_args of their own.",
            (f"{at}.strategy_args", "reward"),
        )
    for key in NOT_TAKEN:
        if worker.is_changed(key):
            yield Problem(
                f"{at}.{key} does nothing with reward: {REWARD_MODEL}, whose scores come after the rollout and are the "
                "rewards. Remove it, or score this domain by a reward that runs on the CPU.",
                (f"{at}.{key}",),
            )
    found = validate(RewardModelArgs, worker.reward_args)
    for problem in found.problems:
        yield Problem(f"{at}.reward_args.{problem.text}", tuple(f"{at}.reward_args.{key}" for key in problem.keys))
    if worker.query_filter_config.type != "no_filter" and config.is_use_additional_prompts:
        yield Problem(
            f"is_use_additional_prompts: other prompts are started during the rollout, but {at}.query_filter_config "
            f"can only be applied after it, when the rewards of {REWARD_MODEL} are there. Set "
            "is_use_additional_prompts: false, or remove the filter.",
            ("is_use_additional_prompts", f"{at}.query_filter_config"),
        )


def _part_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    for index, part in enumerate(worker.reward_manager_config):
        if part.reward == REWARD_MODEL:
            key = f"{at}.reward_manager_config.{index}.reward"
            yield Problem(
                f"{key}: {REWARD_MODEL} scores after the rollout and cannot be added to rewards that are computed "
                f"during it. Make it the reward of the domain: {at}.reward: {REWARD_MODEL}.",
                (key,),
            )
