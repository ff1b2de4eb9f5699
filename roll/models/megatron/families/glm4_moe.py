"""GLM-4.5: heads turned in part, experts chosen by sigmoid and a correction, one for all tokens."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen2, qwen3, qwen3_moe
from roll.models.megatron.family import Columns, Family, GateUp, Rule, Whole, expert_settings

CORRECTION: dict[str, Rule] = {"mlp.router.expert_bias": Whole("mlp.gate.e_score_correction_bias")}
SHARED_EXPERTS: dict[str, Rule] = {
    "mlp.shared_experts.linear_fc1.weight": GateUp(
        "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"
    ),
    "mlp.shared_experts.linear_fc2.weight": Columns("mlp.shared_experts.down_proj.weight"),
}


def mixture(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings that this mixture shares with DeepSeek's. Where there is one group of experts, none is left
    out."""
    grouped = (getattr(config, "n_group", None) or 1) > 1
    return expert_settings(config) | {
        "moe_router_num_groups": config.n_group if grouped else None,
        "moe_router_group_topk": config.topk_group if grouped else None,
        "moe_router_topk_scaling_factor": config.routed_scaling_factor,
    }


def corrected(config: PretrainedConfig) -> dict[str, Any]:
    """Experts chosen by sigmoid and a correction of each, which training leaves as it is."""
    return mixture(config) | {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
    }


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return corrected(config) | {
        "add_bias_linear": False,
        "add_qkv_bias": bool(config.attention_bias),
        "qk_layernorm": bool(config.use_qk_norm),
    }


FAMILY = Family(
    qwen3.ATTENTION | qwen2.BIASES | llama.MLP | qwen3_moe.EXPERTS | CORRECTION | SHARED_EXPERTS | llama.NORMS, settings
)
