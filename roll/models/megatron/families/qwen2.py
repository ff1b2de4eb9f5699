"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama
from roll.models.megatron.family import Family, QueryKeyValue, Rule

BIASES: dict[str, Rule] = {
    "self_attention.linear_qkv.bias": QueryKeyValue(
        "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"
    )
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return {"add_bias_linear": False, "add_qkv_bias": True, "qk_layernorm": False}


FAMILY = Family(llama.ATTENTION | BIASES | llama.MLP | llama.NORMS, settings)
