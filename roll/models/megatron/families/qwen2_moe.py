"""Qwen2-MoE: Qwen2's attention; where a layer has experts, beside them one that every token goes to, behind a gate."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen2, qwen3_moe
from roll.models.megatron.family import Columns, Family, GateUp, Rule, Whole

SHARED_EXPERT: dict[str, Rule] = {
    "mlp.shared_experts.linear_fc1.weight": GateUp(
        "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"
    ),
    "mlp.shared_experts.linear_fc2.weight": Columns("mlp.shared_expert.down_proj.weight"),
    "mlp.shared_experts.gate_weight": Whole("mlp.shared_expert_gate.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return qwen2.settings(config) | qwen3_moe.mixture(config) | {"moe_shared_expert_gate": True}


FAMILY = Family(llama.ATTENTION | qwen2.BIASES | llama.MLP | qwen3_moe.EXPERTS | SHARED_EXPERT | llama.NORMS, settings)
