"""Small valid configurations for tests, and how to change them."""

import copy
from typing import Any

from roll.configs.checks.rl import config_problems, config_warnings
from roll.configs.checks.roles import run_problems, run_warnings
from roll.configs.load.validate import Checked, validate
from roll.configs.plan.batch_plan import build_plan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.tables.features import active
from roll.pipeline.rlvr.rlvr_checks import rlvr_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rl.user_code import user_code_problems
from roll.run.start.preflight import role_strategy_problems

MINIMAL: dict[str, Any] = {
    "pretrain": "org/model",
    "response_length": 12,
    "prompt_length": 32,
    "rollout_batch_size": 32,
    "num_return_sequences_in_group": 8,
    "num_gpus_per_node": 8,
    "adv_estimator": "grpo",
    "actor_train": {
        "training_args": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
        "data_args": {"file_name": "train.jsonl"},
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": "list(range(0, 2))",
    },
    "actor_infer": {"strategy_args": {"strategy_name": "vllm"}, "device_mapping": [2]},
    "rewards": {"math": {"reward": "math_rule"}},
}


def tree(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The minimal tree with dotted keys set; a value of `...` removes the key.

    Example: tree({"actor_train.model_args.dtype": "fp32", "response_length": ...})
    """
    made = copy.deepcopy(MINIMAL)
    for key, value in (changes or {}).items():
        *parents, last = key.split(".")
        node = made
        for part in parents:
            node = node.setdefault(part, {})
        if value is ...:
            node.pop(last, None)
        else:
            node[last] = value
    return made


def config(changes: dict[str, Any] | None = None) -> RLVRConfig:
    return RLVRConfig.model_validate(tree(changes))


def checked(changes: dict[str, Any] | None = None) -> Checked[RLVRConfig]:
    return validate(RLVRConfig, tree(changes))


def problems(changes: dict[str, Any] | None = None) -> list[str]:
    """Every message a dry run would refuse this configuration with."""
    result = checked(changes)
    found = list(result.problems)
    if result.config is not None:
        later = [*run_problems(result.config), *role_strategy_problems(result.config)]
        later += config_problems(result.config) + rlvr_problems(result.config)
        later += user_code_problems(result.config)
        found += result.about_sound_keys(later)
    return [problem.text for problem in found]


def warnings_of(made: AlgorithmConfig) -> list[str]:
    """What a dry run warns of in these settings, strategies and the kind of run aside."""
    found = [text for feature in active(made) for text in feature.warnings(made)]
    return [*run_warnings(made, build_plan(made)), *found, *config_warnings(made)]
