"""Qwen3, dense: Llama with norms on the heads of queries and keys."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama
from roll.models.megatron.family import Family, Rule, Whole

HEAD_NORMS: dict[str, Rule] = {
    "self_attention.q_layernorm.weight": Whole("self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": Whole("self_attn.k_norm.weight"),
}
ATTENTION = llama.ATTENTION | HEAD_NORMS


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return {"add_bias_linear": False, "add_qkv_bias": False, "qk_layernorm": True}


FAMILY = Family(ATTENTION | llama.MLP | llama.NORMS, settings)
