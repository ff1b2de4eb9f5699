"""DeepSeek-V2: latent attention; experts chosen by softmax, some for every token."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import glm4_moe, llama, qwen3_moe
from roll.models.megatron.family import Columns, Family, Rows, Rule, Whole

ATTENTION: dict[str, Rule] = {
    "self_attention.linear_q_proj.weight": Rows("self_attn.q_proj.weight"),
    "self_attention.linear_q_down_proj.weight": Rows("self_attn.q_a_proj.weight"),
    "self_attention.q_layernorm.weight": Whole("self_attn.q_a_layernorm.weight"),
    "self_attention.linear_q_up_proj.weight": Rows("self_attn.q_b_proj.weight"),
    "self_attention.linear_kv_down_proj.weight": Rows("self_attn.kv_a_proj_with_mqa.weight"),
    "self_attention.kv_layernorm.weight": Whole("self_attn.kv_a_layernorm.weight"),
    "self_attention.linear_kv_up_proj.weight": Rows("self_attn.kv_b_proj.weight"),
    "self_attention.linear_proj.weight": Columns("self_attn.o_proj.weight"),
}


def latent_attention(config: PretrainedConfig) -> dict[str, Any]:
    """Megatron's settings for latent attention. With yarn, queries and keys are scaled with the length of the context
    if mscale_all_dim says so; the rest of yarn is in the frequencies."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_scaled = rope.get("rope_type", "default") != "default"
    return {
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": True,
        "multi_latent_attention": True,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_head_dim": config.qk_nope_head_dim,
        "qk_pos_emb_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "num_query_groups": config.num_attention_heads,
        "rope_type": "yarn",
        "original_max_position_embeddings": 4096,  # rows of a table that nobody reads
        "rotary_scaling_factor": rope.get("factor", 1.0) if is_scaled else 1.0,
        "mscale_all_dim": rope.get("mscale_all_dim") or 0.0,
    }


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return latent_attention(config) | glm4_moe.mixture(config) | {"moe_router_pre_softmax": True}


FAMILY = Family(ATTENTION | llama.MLP | qwen3_moe.EXPERTS | glm4_moe.SHARED_EXPERTS | llama.NORMS, settings)
