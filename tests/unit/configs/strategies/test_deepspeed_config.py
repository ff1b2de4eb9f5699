"""DeepSpeed configurations: unknown keys, contradictions, and what `auto` becomes."""

from typing import Any

import pytest

from roll.configs.strategies.deepspeed import DeepSpeedFacts, complete_deepspeed_config, deepspeed_problems, zero_stage
from tests.helpers.configs import problems

FACTS = DeepSpeedFacts("fp32", micro_batch_size=16, accumulation=2, dp_size=4, max_grad_norm=1.0)
AT = "actor_train.strategy_args.strategy_config"


def said(config: dict[str, Any], facts: DeepSpeedFacts = FACTS) -> list[str]:
    return [problem.text for problem in deepspeed_problems("actor_train", config, facts)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"zero_optimisation": {}},
            f"{AT}.zero_optimisation: DeepSpeed has no such key. Did you mean zero_optimization?",
        ),
        (
            {"zero_optimization": {"overlap_com": True}},
            f"{AT}.zero_optimization.overlap_com: DeepSpeed has no such key. Did you mean overlap_comm?",
        ),
        ({"bf16": {"enable": True}}, f"{AT}.bf16.enable: DeepSpeed has no such key. Did you mean enabled?"),
        ({"amp": {}}, f"{AT}.amp: DeepSpeed has no such key."),  # it had one once
        (
            {"zero_optimization": {"mics_shard_size": 8}},
            f"{AT}.zero_optimization.mics_shard_size: DeepSpeed has no such key.",
        ),
        (
            {"bf16": {"check_overflow": True}},
            f"{AT}.bf16.check_overflow: DeepSpeed has no such key. Did you mean check_grad_overflow?",
        ),
        (
            {"bf16": {"enabled": True}},
            f"{AT}.bf16.enabled: true contradicts actor_train.model_args.dtype: fp32. Write `bf16.enabled: auto`, or "
            "change dtype.",
        ),
        (
            {"train_micro_batch_size_per_gpu": 8},
            f"{AT}.train_micro_batch_size_per_gpu: 8 contradicts "
            "actor_train.training_args.per_device_train_batch_size: "
            "16. Remove it or write `auto`.",
        ),
        (
            {"train_batch_size": 64},
            f"{AT}.train_batch_size: 64 contradicts actor_train.per_device_train_batch_size x "
            "gradient_accumulation_steps x data-parallel ranks: 128. Remove it or write `auto`.",
        ),
        ({"gradient_clipping": 0.5}, f"{AT}.gradient_clipping: 0.5 contradicts max_grad_norm: 1.0."),
        ({"optimizer": {"type": "AdamW"}}, f"{AT}.optimizer: the optimizer and its schedule are set in actor_train."),
        ({"zero_optimization": {"stage": 4}}, f"{AT}.zero_optimization.stage: 4 must be 0, 1, 2 or 3."),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            f"{AT}.zero_optimization.offload_optimizer does nothing without ZeRO: the optimizer stays on the GPU.",
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            f"{AT}.zero_optimization.offload_param needs stage 3, but stage is 2.",
        ),
        (
            {"gradient_allreduce_op": "sum"},
            f"{AT}.gradient_allreduce_op: 'sum' cannot be used: the loss counts on gradients that are averaged over "
            "the ranks. Set it to mean, or remove it.",
        ),
        (
            {"tensor_parallel": {"autotp_size": 2}},
            f"{AT}.tensor_parallel.autotp_size: 2 cannot be used: every rank of a role holds other rows; tensor "
            "parallel is a matter of the megatron strategies. Set it to 1, or remove it.",
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}},
            f"{AT}.zero_optimization.zero_quantized_gradients: true cannot be used: ZeRO++ is not supported. Set it to "
            "false, or remove it.",
        ),
        ({"expert_parallel": {"autoep_size": 2}}, f"{AT}.expert_parallel.autoep_size: 2 cannot be used: "),
        ({"sequence_parallel_size": 2}, f"{AT}.sequence_parallel_size: 2 cannot be used: "),
        (
            {"data_parallel_size": 4},
            f"{AT}.data_parallel_size: 4 cannot be used: it is the number of the role's ranks, from device_mapping. "
            "Remove it.",
        ),
    ],
)
def test_what_deepspeed_would_accept_silently_or_refuse_late_is_a_problem_now(
    config: dict[str, Any], message: str
) -> None:
    found = said(config)
    assert len(found) == 1 and found[0].startswith(message)


def test_parallel_sizes_that_change_nothing_are_taken() -> None:
    inert = {"gradient_allreduce_op": "mean", "tensor_parallel": {"autotp_size": 1}, "sequence_parallel_size": 1}
    assert said(inert) == []


def test_bf16_switched_off_contradicts_bf16_weights() -> None:
    assert said({"bf16": {"enabled": False}}, DeepSpeedFacts("bf16"))[0].startswith(f"{AT}.bf16.enabled: false")
    assert said({"bf16": {"enabled": True}}, DeepSpeedFacts("bf16")) == []


def test_auto_is_filled_from_the_plan_and_silent_defaults_are_written_out() -> None:
    fragment = {
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}},
    }
    assert said(fragment) == []
    assert complete_deepspeed_config(fragment, FACTS) == {
        "bf16": {"enabled": False},
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 128,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    assert fragment["gradient_clipping"] == "auto"  # the given configuration is left alone


def test_clipping_that_is_off_is_written_as_zero_since_deepspeeds_default_is_one() -> None:
    off = DeepSpeedFacts("fp32", 1, 1, 1, max_grad_norm=0.0)
    assert complete_deepspeed_config({}, off)["gradient_clipping"] == 0.0


def test_a_role_that_does_not_learn_has_no_batch_in_its_configuration() -> None:
    filled = complete_deepspeed_config({"zero_optimization": {"stage": 3}}, DeepSpeedFacts("bf16"))
    assert filled["bf16"] == {"enabled": True}
    assert "train_batch_size" not in filled and zero_stage(filled) == 3


def test_problems_of_a_strategy_config_reach_the_user() -> None:
    assert problems({AT: {"zero_optimisation": {}}}) == [
        f"{AT}.zero_optimisation: DeepSpeed has no such key. Did you mean zero_optimization?"
    ]
