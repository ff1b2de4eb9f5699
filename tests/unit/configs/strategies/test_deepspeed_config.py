"""DeepSpeed configurations: unknown keys, contradictions, and what `auto` becomes."""

from typing import Any

from roll.configs.strategies.deepspeed import DeepSpeedFacts, complete_deepspeed_config, deepspeed_problems, zero_stage
from tests.helpers.cases import cases
from tests.helpers.configs import problems

FACTS = DeepSpeedFacts("fp32", micro_batch_size=16, accumulation=2, dp_size=4, max_grad_norm=1.0)
AT = "actor_train.strategy_args.strategy_config"


def said(config: dict[str, Any], facts: DeepSpeedFacts = FACTS) -> list[str]:
    return [problem.text for problem in deepspeed_problems("actor_train", config, facts)]


@cases("config, message")
def test_what_deepspeed_would_accept_silently_or_refuse_late_is_a_problem_now(
    config: dict[str, Any], message: str
) -> None:
    found = said(config)
    assert len(found) == 1 and found[0].startswith(message)


def test_what_the_config_leaves_to_roll_is_written_or_refused() -> None:
    inert = {"gradient_allreduce_op": "mean", "tensor_parallel": {"autotp_size": 1}, "sequence_parallel_size": 1}
    assert said(inert) == []
    assert said({"bf16": {"enabled": False}}, DeepSpeedFacts("bf16"))[0].startswith(f"{AT}.bf16.enabled: false")
    assert said({"bf16": {"enabled": True}}, DeepSpeedFacts("bf16")) == []
    off = DeepSpeedFacts("fp32", 1, 1, 1, max_grad_norm=0.0)
    assert complete_deepspeed_config({}, off)["gradient_clipping"] == 0.0
    filled = complete_deepspeed_config({"zero_optimization": {"stage": 3}}, DeepSpeedFacts("bf16"))
    assert filled["bf16"] == {"enabled": True}
    assert "train_batch_size" not in filled and zero_stage(filled) == 3
    assert problems({AT: {"zero_optimisation": {}}}) == [
        f"{AT}.zero_optimisation: DeepSpeed has no such key. Did you mean zero_optimization?"
    ]


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
