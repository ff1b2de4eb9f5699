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
from tests.helpers.cases import cases


def worker(config: dict[str, Any], role: str = "actor_train", **given: Any) -> WorkerConfig:
    name = "fsdp2_train" if ROLES[role].learns else "fsdp2_infer"
    strategy = {"strategy_args": {"strategy_name": name, "strategy_config": config}}
    return WorkerConfig.model_validate({"device_mapping": [0, 1, 2, 3]} | strategy | given)


def found(config: dict[str, Any], role: str = "actor_train", **given: Any) -> list[str]:
    at = f"{role}.strategy_args.strategy_config."
    problems = strategy_problems(Choice(ROLES[role], worker(config, role, **given)))
    return [problem.text.removeprefix(at) for problem in problems]


@cases("config")
def test_settings_that_a_trainer_takes(config: dict[str, Any]) -> None:
    assert found(config) == []


@cases("config, message")
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


def test_fp16_is_refused_and_checkpoints_are_free_of_ranks_and_dtype() -> None:
    (problem,) = found({}, model_args={"dtype": "fp16"})
    assert problem == "actor_train.model_args.dtype: fp16 with fsdp2_train, without loss scaling. Use bf16, or fp32."
    facts = {"strategy_name": "fsdp2_train", "freeze_module_prefix": None, "lora": None, "optim": "adamw_torch"}
    assert required_facts(worker({}), 4) == facts


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
