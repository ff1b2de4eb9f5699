"""The JSON a DeepSpeed engine is built from: the role's strategy_config, completed, with the traps on our way
removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.plan.run_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.deepspeed import DeepSpeedFacts, complete_deepspeed_config, zero_stage
from roll.errors import StrategyError

PARTITIONED_WEIGHTS = 3  # the ZeRO stage from which parameters are no longer whole on a rank


@dataclass(frozen=True)
class EngineConfig:
    """`json` is what deepspeed.initialize takes. `own_clip` is the norm to which the caller must clip (0: it need
    not)."""

    json: dict[str, Any]
    stage: int
    own_clip: float = 0.0

    @property
    def partitions_weights(self) -> bool:
        return self.stage == PARTITIONED_WEIGHTS

    def keeps_on_host(self, section: Literal["offload_optimizer", "offload_param"]) -> bool:
        settings = self.json["zero_optimization"].get(section)
        return bool(settings) and settings.get("device", "none") != "none"


def training_config(role: WorkerConfig, plan: TrainPlan) -> EngineConfig:
    """The engine of a role that learns.

    - Clipping is always written out, because DeepSpeed clips at 1.0 when nothing is said. fp32 without ZeRO is clipped
      by the caller: DeepSpeed computes no norm there, and the metric needs one anyway.
    - bf16 accumulates gradients in fp32 with stages 2 and 3: the sum over many micro batches has more digits than bf16.
      Stages 0 and 1 add in bf16, as DeepSpeed does (stage 1 could, with an optimizer that cannot move its states off
      the device).
    """
    _refuse_fp16(role)
    facts = DeepSpeedFacts(
        dtype=role.model_args.dtype,
        micro_batch_size=plan.micro_batch_size,
        accumulation=plan.accumulation,
        dp_size=plan.dp_size * role.model_args.ulysses_size,  # DeepSpeed counts every rank
        max_grad_norm=plan.max_grad_norm,
    )
    json = complete_deepspeed_config(role.strategy_config, facts)
    stage = zero_stage(json)
    own_clip = 0.0
    if stage == 0 and facts.dtype == "fp32":
        own_clip, json["gradient_clipping"] = json["gradient_clipping"], 0.0
    if stage >= 2 and facts.dtype == "bf16":
        json["data_types"] = {"grad_accum_dtype": "fp32"} | json.get("data_types", {})
    return EngineConfig(json, stage, own_clip)


def scoring_config(role: WorkerConfig) -> EngineConfig:
    """The engine of a role that only scores: ZeRO-3 if asked for, otherwise whole weights on every rank (stages 1 and 2
    shard what only training has)."""
    _refuse_fp16(role)
    json = complete_deepspeed_config(role.strategy_config, DeepSpeedFacts(dtype=role.model_args.dtype))
    stage = PARTITIONED_WEIGHTS if zero_stage(json) == PARTITIONED_WEIGHTS else 0
    zero = {key: value for key, value in json["zero_optimization"].items() if key != "offload_optimizer"}
    json["zero_optimization"] = zero | {"stage": stage}
    if stage == 0:
        json["zero_optimization"] = {"stage": 0}
    json["train_micro_batch_size_per_gpu"] = role.infer_batch_size  # DeepSpeed wants one; nothing here depends on it
    for key in ("train_batch_size", "gradient_accumulation_steps"):
        json.pop(key, None)
    return EngineConfig(json, stage)


def _refuse_fp16(role: WorkerConfig) -> None:
    if role.model_args.dtype == "fp16":
        raise StrategyError(
            "model_args.dtype: fp16 is not supported by the deepspeed strategies (its range is too small for gradients "
            "without loss scaling). Use bf16, or fp32."
        )
