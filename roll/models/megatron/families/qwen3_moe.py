"""Qwen3-MoE: Qwen3's attention, experts in every layer."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen3
from roll.models.megatron.family import Family
from roll.models.megatron.rules import Columns, GateUp, Rule, Whole

EXPERTS: dict[str, Rule] = {
    "mlp.router.weight": Whole("mlp.gate.weight"),
    "mlp.experts.local_experts.{expert}.linear_fc1.weight": GateUp(
        "mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"
    ),
    "mlp.experts.local_experts.{expert}.linear_fc2.weight": Columns("mlp.experts.{expert}.down_proj.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return qwen3.settings(config) | {
        "num_moe_experts": config.num_experts,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_ffn_hidden_size": config.moe_intermediate_size,
        "moe_router_pre_softmax": False,
    }


# With norm_topk_prob the chosen experts' weights sum to 1: softmax after the choice. Every layer has experts
# (family_table.py sees to both).
FAMILY = Family(qwen3.ATTENTION | EXPERTS | llama.NORMS, settings)
