"""Environments, groups and their numbers that an agentic YAML leaves out."""

import math
from collections.abc import Iterator

from roll.configs.load.chosen_values import Chosen, KeysInYaml, Machine
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.run.start.rl_defaults import GROUP_SIZE, compares_in_groups

_TAGS, _SIZE, _GROUPS = (f"train_env_manager.{key}" for key in ("tags", "group_size", "num_env_groups"))


def env_defaults(config: AgenticConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    tags = config.train_env_manager.tags
    main = config.val_env_manager
    if not tags and config.custom_envs:
        validated = {*(main.tags if main else ()), *(tag for keys in config.eval_sets.values() for tag in keys.tags)}
        tags = tuple(tag for tag in config.custom_envs if tag not in validated) or tuple(config.custom_envs)
        yield Chosen(_TAGS, list(tags), "all of custom_envs that are not for validation alone", shown=", ".join(tags))
    if main is not None and not main.tags and tags:
        yield Chosen(
            "val_env_manager.tags", list(tags), "those of the training, with other seeds", shown=", ".join(tags)
        )
    size, groups = config.group_size, config.train_env_manager.num_env_groups
    if _SIZE not in user_keys and compares_in_groups(config):
        batch = config.rollout_batch_size
        fitting = [n for n in range(2, GROUP_SIZE + 1) if batch % n == 0]
        size = fitting[-1] if fitting else GROUP_SIZE
        yield Chosen(_SIZE, size, f"{config.adv_estimator} compares rewards within a group", rolls=1)
        groups = max(1, batch // size)
    if _GROUPS in user_keys or config.train_env_manager.num_groups_partition or not tags:
        return
    groups = math.ceil(groups / len(tags)) * len(tags)
    if groups != config.train_env_manager.num_env_groups:
        yield Chosen(_GROUPS, groups, "the groups of a step, the same number of each tag", rolls=128)
