"""Qwen3-MoE: Qwen3's attention, experts in every layer or in some."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen3
from roll.models.megatron.family import Columns, Family, GateUp, Rule, Whole, expert_settings

EXPERTS: dict[str, Rule] = {
    "mlp.router.weight": Whole("mlp.gate.weight"),
    "mlp.experts.local_experts.{expert}.linear_fc1.weight": GateUp(
        "mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"
    ),
    "mlp.experts.local_experts.{expert}.linear_fc2.weight": Columns("mlp.experts.{expert}.down_proj.weight"),
}


def mixture(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings that Qwen's mixtures share. With norm_topk_prob the chosen experts' weights sum to 1: softmax
    after the choice."""
    return expert_settings(config) | {"moe_router_pre_softmax": not config.norm_topk_prob}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return qwen3.settings(config) | mixture(config)


FAMILY = Family(qwen3.ATTENTION | llama.MLP | EXPERTS | llama.NORMS, settings)
