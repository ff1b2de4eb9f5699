"""Llama, without biases: what the other families build on."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.family import Columns, Family, GateUp, QueryKeyValue, Rule, Whole

ATTENTION: dict[str, Rule] = {
    "self_attention.linear_qkv.weight": QueryKeyValue(
        "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
    ),
    "self_attention.linear_proj.weight": Columns("self_attn.o_proj.weight"),
}
MLP: dict[str, Rule] = {
    "mlp.linear_fc1.weight": GateUp("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": Columns("mlp.down_proj.weight"),
}
NORMS: dict[str, Rule] = {
    "input_layernorm.weight": Whole("input_layernorm.weight"),
    "pre_mlp_layernorm.weight": Whole("post_attention_layernorm.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return {"add_bias_linear": False, "add_qkv_bias": False, "qk_layernorm": False}


FAMILY = Family(ATTENTION | MLP | NORMS, settings)
