from typing import Any

import pytest

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.deepspeed.rank import scoring_config, training_config


def role(dtype: str = "fp32", **engine: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": "deepspeed_train", "strategy_config": engine},
            "model_args": {"dtype": dtype, "model_name_or_path": "model"},
            "infer_batch_size": 3,
        }
    )


def plan(max_grad_norm: float) -> TrainPlan:
    return TrainPlan("actor_train", 64, 4, 2, 8, 1, 10, 0, 3, max_grad_norm)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.7])
def test_clipping_is_always_written_out(max_grad_norm: float) -> None:
    config = training_config(role(zero_optimization={"stage": 2}, gradient_clipping="auto"), plan(max_grad_norm))
    assert config.json["gradient_clipping"] == max_grad_norm
    assert config.own_clip == 0


def test_precision_batches_and_clipping_follow_plan_and_model() -> None:
    config = training_config(role(), plan(0.7))
    assert (config.stage, config.own_clip, config.json["gradient_clipping"]) == (0, 0.7, 0.0)
    config = training_config(role("bf16"), plan(0.7))
    assert (config.own_clip, config.json["gradient_clipping"], config.json["bf16"]) == (0.0, 0.7, {"enabled": True})
    json = training_config(role("bf16", bf16={"enabled": "auto"}, train_batch_size="auto"), plan(1.0)).json
    assert (json["train_micro_batch_size_per_gpu"], json["gradient_accumulation_steps"], json["train_batch_size"]) == (
        4,
        2,
        64,
    )
    assert json["bf16"]["enabled"] is True
    assert training_config(role("bf16", zero_optimization={"stage": 2}), plan(1.0)).json["data_types"] == {
        "grad_accum_dtype": "fp32"
    }
    told = role("bf16", zero_optimization={"stage": 3}, data_types={"grad_accum_dtype": "bf16"})
    assert training_config(told, plan(1.0)).json["data_types"] == {"grad_accum_dtype": "bf16"}
    assert training_config(role("bf16"), plan(1.0)).json["communication_data_type"] == "fp32"
    told = role("bf16", communication_data_type="bf16")
    assert training_config(told, plan(1.0)).json["communication_data_type"] == "bf16"
    assert "communication_data_type" not in training_config(role(), plan(1.0)).json


def test_scoring_shards_weights_with_stage_3_only() -> None:
    partitioned = scoring_config(role(zero_optimization={"stage": 3, "offload_optimizer": {"device": "cpu"}}))
    assert partitioned.json["zero_optimization"] == {"stage": 3}
    assert partitioned.partitions_weights
    whole = scoring_config(role(zero_optimization={"stage": 2, "overlap_comm": True}))
    assert whole.json["zero_optimization"] == {"stage": 0}
    assert whole.json["train_micro_batch_size_per_gpu"] == 3
