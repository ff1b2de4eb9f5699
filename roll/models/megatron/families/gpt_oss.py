"""gpt-oss: attention with sinks, of the last positions alone in every second layer, and experts with biases, all of a
layer in one tensor."""

from typing import Any

from megatron.core.fusions.fused_bias_geglu import quick_gelu
from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen2
from roll.models.megatron.family import Family, InputRows, InterleavedGateUp, Rows, Rule, Whole, expert_settings

ATTENTION: dict[str, Rule] = {
    "self_attention.core_attention.softmax_offset": Rows("self_attn.sinks"),
    **llama.ATTENTION,
    **qwen2.BIASES,
    "self_attention.linear_proj.bias": Whole("self_attn.o_proj.bias"),
}
EXPERTS: dict[str, Rule] = {
    "mlp.router.weight": Whole("mlp.router.weight"),
    "mlp.router.bias": Whole("mlp.router.bias"),
    "mlp.experts.local_experts.{expert}.linear_fc1.weight": InterleavedGateUp("mlp.experts.gate_up_proj"),
    "mlp.experts.local_experts.{expert}.linear_fc1.bias": InterleavedGateUp("mlp.experts.gate_up_proj_bias"),
    "mlp.experts.local_experts.{expert}.linear_fc2.weight": InputRows("mlp.experts.down_proj"),
    "mlp.experts.local_experts.{expert}.linear_fc2.bias": Whole("mlp.experts.down_proj_bias"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    """A window of Megatron's counts the positions before one's own. Gates are turned as by GELU's sigmoid form (alpha
    1.702), and both halves clamped first."""
    return expert_settings(config) | {
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "qk_layernorm": False,
        "softmax_type": "learnable",
        "window_size": (config.sliding_window - 1, 0) if config.sliding_window else None,
        "window_attn_skip_freq": [int(kind == "sliding_attention") for kind in config.layer_types],
        "activation_func": quick_gelu,
        "activation_func_clamp_value": config.swiglu_limit,
        "glu_linear_offset": 1.0,
        "moe_router_pre_softmax": False,
    }


FAMILY = Family(ATTENTION | EXPERTS | llama.NORMS, settings)
