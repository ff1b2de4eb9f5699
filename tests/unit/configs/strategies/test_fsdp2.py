"""What a strategy_config of fsdp2_train and fsdp2_infer may say, before anything is built."""

from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.fsdp2 import warnings
from roll.configs.strategies.fsdp2_settings import Fsdp2Settings
from roll.configs.strategies.table import required_facts
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.table import strategy_problems


def worker(config: dict[str, Any], role: str = "actor_train", **given: Any) -> WorkerConfig:
    name = "fsdp2_train" if ROLES[role].learns else "fsdp2_infer"
    strategy = {"strategy_args": {"strategy_name": name, "strategy_config": config}}
    return WorkerConfig.model_validate({"device_mapping": [0, 1, 2, 3]} | strategy | given)


def found(config: dict[str, Any], role: str = "actor_train", **given: Any) -> list[str]:
    at = f"{role}.strategy_args.strategy_config."
    problems = strategy_problems(Choice(ROLES[role], worker(config, role, **given)))
    return [problem.text.removeprefix(at) for problem in problems]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"fsdp_size": 2, "forward_prefetch": True, "reshard_after_forward": False},
        {"wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"], "min_num_params": 1000}},
        {"mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "torch.float32"}},
        {"fsdp_size": 16, "param_dtype": "bf16", "reduce_dtype": "float32"},
        {"param_offload": True, "optimizer_offload": True},
        {"tensor_parallel_size": 2, "fsdp_size": 1, "param_offload": True},
        {"offload_policy": True},
    ],
)
def test_settings_that_a_trainer_takes(config: dict[str, Any]) -> None:
    assert found(config) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fsdp_sizes": 2}, "fsdp_sizes: unknown key (value 2). Did you mean fsdp_size?"),
        ({"tensor_parallel": 2}, "tensor_parallel: unknown key (value 2). Did you mean tensor_parallel_size?"),
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size: 3 does not divide the role's 4 ranks. Use one of [1, 2, 4].",
        ),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: 0 must be at least 1."),
        (
            {"tensor_parallel_size": 2, "fsdp_size": 0},
            "fsdp_size: 0 does not divide the role's 2 groups of 2 ranks. Use -1, or one of [1, 2].",
        ),
        ({"use_orig_params": True}, "use_orig_params: unknown key (value true)."),
        ({"wrap_policy": {"min_params": 3}}, "wrap_policy.min_params: unknown key (value 3)."),
        ({"fsdp_size": 3}, "fsdp_size: 3 does not divide the role's 4 ranks. Use -1, or one of [1, 2, 4]."),
        ({"fsdp_size": 0}, "fsdp_size: 0 does not divide the role's 4 ranks. Use -1, or one of [1, 2, 4]."),
        ({"fsdp_size": -2}, "fsdp_size: -2 must be at least -1."),
        ({"reshard_after_forward": 2}, "reshard_after_forward: 2 must be true or false."),
        (
            {"mixed_precision": {"param_dtype": "fp32"}},
            "param_dtype: fp32 contradicts actor_train.model_args.dtype: bf16. Keep one.",
        ),
        (
            {"offload_policy": True, "param_offload": True},
            "param_offload: with offload_policy everything stays in host memory anyway. Remove one of them.",
        ),
    ],
)
def test_settings_that_are_refused(config: dict[str, Any], message: str) -> None:
    (problem,) = found(config)
    assert problem.startswith(message)


def test_what_only_training_has_is_refused_of_a_role_that_scores() -> None:
    assert found({"param_offload": True, "fsdp_size": 2}, "reference") == []
    config: dict[str, Any] = {"reduce_dtype": "float32"}
    at = "reference.strategy_args.strategy_config"
    assert list(warnings(Choice(ROLES["reference"], worker(config, "reference")))) == [
        f"{at}.reduce_dtype does nothing: reference does not learn."
    ]
    (problem,) = found({"optimizer_offload": True}, "reference")
    assert problem == "optimizer_offload: reference does not learn and does not use it. Remove it."


def test_fp16_is_refused() -> None:
    (problem,) = found({}, model_args={"dtype": "fp16"})
    assert problem == "actor_train.model_args.dtype: fp16 with fsdp2_train, without loss scaling. Use bf16, or fp32."


def test_gradients_of_a_model_in_fp32_are_summed_in_nothing_else() -> None:
    config = {"mixed_precision": {"reduce_dtype": "bf16"}}
    assert found(config) == []
    (problem,) = found(config, model_args={"dtype": "fp32"})
    assert problem == (
        "reduce_dtype: gradients of an fp32 model are always summed in fp32. Remove it, or set "
        "actor_train.model_args.dtype to bf16."
    )


@pytest.mark.parametrize(("size", "ranks"), [(-1, 4), (1, 1), (2, 2), (4, 4), (16, 4)])
def test_fsdp_size_says_how_many_of_four_ranks_hold_the_model_together(size: int, ranks: int) -> None:
    assert Fsdp2Settings(fsdp_size=size).shard_size(4) == ranks


def test_a_checkpoint_is_tied_neither_to_ranks_nor_to_dtype() -> None:
    facts = {"strategy_name": "fsdp2_train", "freeze_module_prefix": None, "lora": None, "optim": "adamw_torch"}
    assert required_facts(worker({}), 4) == facts
