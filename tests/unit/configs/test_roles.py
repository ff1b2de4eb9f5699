"""The table of roles: what a section has that its role does not read is said, for every role, and nothing else is."""

import copy
from typing import Any

import pytest

from roll.configs.checks.rl import config_problems
from roll.configs.checks.roles import unused_keys
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import ACTOR_TRAIN, CRITIC, REFERENCE, ROLES, Role
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import config, warnings_of
from tests.unit.pipeline.agentic.test_config import tree as agentic_tree

OTHERS: dict[str, Any] = {
    "reference": {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [3]},
    "critic": {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [4]},
    "validation": {"data_args": {"file_name": "val.jsonl"}},
    "adv_estimator": "gae",
    "enable_reference": True,
}


def run_of_all_roles(changes: dict[str, Any] | None = None) -> RLVRConfig:
    return config(copy.deepcopy(OTHERS) | (changes or {}))


def said(made: AlgorithmConfig) -> list[str]:
    return [text for text in warnings_of(made) if " nothing here: " in text]


def test_a_run_of_all_roles_with_what_each_reads_says_nothing() -> None:
    everything = {
        "actor_train.infer_batch_size": 2,
        "actor_train.model_args": {"freeze_module_prefix": "model.embed", "disable_gradient_checkpointing": True},
        "actor_infer.generating_args": {"temperature": 0.7},
        "actor_infer.backend_timeout": 5,
        "critic.training_args": {"learning_rate": 1e-5},
        "critic.model_args": {"attn_implementation": "sdpa"},
        "reference.model_args": {"dtype": "fp32"},
        "reference.system_envs": {"A": "1"},
        "reference.infer_batch_size": 4,
        "validation.generating_args": {"temperature": 0.6},
        "rewards.math": {"reward": "math_rule", "world_size": 2, "tag_included": "aime", "system_envs": {"A": "1"}},
    }
    assert said(run_of_all_roles(everything)) == []


@cases("changes, message")
def test_a_key_that_a_role_has_no_use_for_is_said(changes: dict[str, Any], message: str) -> None:
    made = run_of_all_roles(changes)
    assert config_problems(made) == [] == rlvr_problems(made)
    assert said(made) == [message]


def test_what_roles_read_is_complete() -> None:
    critic = OTHERS["critic"] | {"infer_batch_size": 2, "generating_args": {"top_p": 0.9}}
    assert warnings_of(config({"critic": critic})) == ["critic is not started: adv_estimator: grpo uses none."]
    rows = [*run_of_all_roles().roles.values(), *AgenticConfig.model_validate(agentic_tree({})).roles.values()]
    assert {key.partition(".")[0] for role in rows for key in role.reads} == {*WorkerConfig.model_fields}
    assert [role.name for role in ROLES.values() if role.head == "value"] == ["critic"]
    assert CRITIC.model_keys == ("reward_pretrain", "pretrain")


def test_the_sections_of_agentic_runs_have_rows_as_well() -> None:
    given = agentic_tree(
        {
            "actor_train.data_args": {"template": "chatml", "file_name": "a.jsonl"},
            "train_env_manager.generating_args": {"temperature": 0.5},
            "train_env_manager.infer_batch_size": 2,
            "val_env_manager.world_size": 4,
            "val_env_manager.generating_args": {"temperature": 0.5},
        }
    )
    assert said(AgenticConfig.model_validate(given)) == [
        "actor_train: data_args.file_name does nothing here: this role learns from episodes.",
        "train_env_manager: generating_args, infer_batch_size do nothing here: environments run on the CPU, and their "
        "responses come from actor_infer.",
        "val_env_manager: world_size does nothing here: validation plays in the processes of the training and samples "
        "with actor_infer's.",
    ]


def test_a_row_of_a_pipelines_own_decides_like_the_others() -> None:
    teacher = Role("teacher", "score", "lm", ("teacher_pretrain",))
    student = Role("student", "train", "lm", ("pretrain",), also_reads=frozenset({"data_args"}))
    given = WorkerConfig.model_validate(
        {"data_args": {"file_name": "a.jsonl"}, "training_args": {"learning_rate": 0.1}, "pg_variant": "tis"}
    )
    assert unused_keys(given, teacher) == ["training_args", "data_args", "pg_variant"]
    assert unused_keys(given, student) == ["pg_variant"]
    assert unused_keys(given, ACTOR_TRAIN) == []
    assert teacher.reads == REFERENCE.reads and student.learns and not teacher.learns


@pytest.mark.parametrize(
    ("infer", "envs", "said"),
    [
        (
            [0, 1],
            {"system_envs.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            {"actor_train", "actor_infer"},
        ),
        ([0, 1], {"actor_train.system_envs.PYTORCH_ALLOC_CONF": "expandable_segments:True"}, {"actor_train"}),
        ([0, 1], {"system_envs.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, set[str]()),
        ([4, 5], {"actor_infer.system_envs.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, set[str]()),
    ],
)
def test_expandable_segments_of_roles_that_share_gpus_are_said_to_be_taken_out(
    infer: list[int], envs: dict[str, Any], said: set[str]
) -> None:
    made = config({"actor_infer.device_mapping": infer, "num_gpus_per_node": 8, **envs})
    found = {text.partition(":")[0] for text in warnings_of(made) if "expandable_segments" in text}
    assert said <= found if said else not found
