"""Every family: how its weights are laid out, and Megatron's settings that its config.json decides."""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from roll.errors import StrategyError
from roll.models.megatron.family import (
    Columns,
    Family,
    FusedGateUp,
    GateUp,
    InputRows,
    InterleavedGateUp,
    QueryKeyValue,
    Rows,
    Rule,
    Whole,
    expert_settings,
)
from roll.models.megatron.family_table import FAMILIES as FORMS
from roll.models.megatron.family_table import family_problem

Rules = dict[str, Rule]


def family_of(config: PretrainedConfig) -> Family:
    """The family of a model. StrategyError for one that is not known, or not in this variant."""
    problem = family_problem(config.to_dict())
    if problem is not None:
        raise StrategyError(problem)
    return FAMILIES[FORMS[config.model_type].name]


# Attention.

ATTENTION: Rules = {
    "self_attention.linear_qkv.weight": QueryKeyValue(
        "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
    ),
    "self_attention.linear_proj.weight": Columns("self_attn.o_proj.weight"),
}
BIASES: Rules = {
    "self_attention.linear_qkv.bias": QueryKeyValue(
        "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"
    )
}
HEAD_NORMS: Rules = {
    "self_attention.q_layernorm.weight": Whole("self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": Whole("self_attn.k_norm.weight"),
}
SINKS: Rules = {"self_attention.core_attention.softmax_offset": Rows("self_attn.sinks")}
OUTPUT_BIAS: Rules = {"self_attention.linear_proj.bias": Whole("self_attn.o_proj.bias")}
LATENT_ATTENTION: Rules = {
    "self_attention.linear_q_proj.weight": Rows("self_attn.q_proj.weight"),
    "self_attention.linear_q_down_proj.weight": Rows("self_attn.q_a_proj.weight"),
    "self_attention.q_layernorm.weight": Whole("self_attn.q_a_layernorm.weight"),
    "self_attention.linear_q_up_proj.weight": Rows("self_attn.q_b_proj.weight"),
    "self_attention.linear_kv_down_proj.weight": Rows("self_attn.kv_a_proj_with_mqa.weight"),
    "self_attention.kv_layernorm.weight": Whole("self_attn.kv_a_layernorm.weight"),
    "self_attention.linear_kv_up_proj.weight": Rows("self_attn.kv_b_proj.weight"),
    "self_attention.linear_proj.weight": Columns("self_attn.o_proj.weight"),
}
NORMS: Rules = {
    "input_layernorm.weight": Whole("input_layernorm.weight"),
    "pre_mlp_layernorm.weight": Whole("post_attention_layernorm.weight"),
}
OUTPUT_NORMS: Rules = {
    "post_self_attn_layernorm.weight": Whole("post_self_attn_layernorm.weight"),
    "post_mlp_layernorm.weight": Whole("post_mlp_layernorm.weight"),
}


def plain(qkv_bias: bool = False, head_norms: bool = False) -> dict[str, Any]:
    """Settings of attention without other biases."""
    return {"add_bias_linear": False, "add_qkv_bias": qkv_bias, "qk_layernorm": head_norms}


def latent(config: PretrainedConfig) -> dict[str, Any]:
    """Megatron's settings for latent attention. With yarn, queries and keys are scaled with the length of the context
    if mscale_all_dim says so; the rest of yarn is in the frequencies."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_scaled = rope.get("rope_type", "default") != "default"
    return plain(head_norms=True) | {
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


# MLPs and experts.


def _mlp(megatron: str, hf: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Rules:
    """The two matrices of one MLP or expert, by the beginnings of its names."""
    return {
        f"{megatron}.linear_fc1.weight": GateUp(f"{hf}.{gate}.weight", f"{hf}.{up}.weight"),
        f"{megatron}.linear_fc2.weight": Columns(f"{hf}.{down}.weight"),
    }


_EXPERT = "mlp.experts.local_experts.{expert}"
MLP = _mlp("mlp", "mlp")
FUSED_MLP: Rules = {
    "mlp.linear_fc1.weight": FusedGateUp("mlp.gate_up_proj.weight"),
    "mlp.linear_fc2.weight": Columns("mlp.down_proj.weight"),
}
EXPERTS: Rules = {"mlp.router.weight": Whole("mlp.gate.weight"), **_mlp(_EXPERT, "mlp.experts.{expert}")}
MIXTRAL_EXPERTS: Rules = {
    "mlp.router.weight": Whole("block_sparse_moe.gate.weight"),
    **_mlp(_EXPERT, "block_sparse_moe.experts.{expert}", "w1", "w3", "w2"),
}
GPT_OSS_EXPERTS: Rules = {  # with biases, all of a layer in one tensor
    "mlp.router.weight": Whole("mlp.router.weight"),
    "mlp.router.bias": Whole("mlp.router.bias"),
    f"{_EXPERT}.linear_fc1.weight": InterleavedGateUp("mlp.experts.gate_up_proj"),
    f"{_EXPERT}.linear_fc1.bias": InterleavedGateUp("mlp.experts.gate_up_proj_bias"),
    f"{_EXPERT}.linear_fc2.weight": InputRows("mlp.experts.down_proj"),
    f"{_EXPERT}.linear_fc2.bias": Whole("mlp.experts.down_proj_bias"),
}
CORRECTION: Rules = {"mlp.router.expert_bias": Whole("mlp.gate.e_score_correction_bias")}
SHARED_EXPERTS = _mlp("mlp.shared_experts", "mlp.shared_experts")
GATED_SHARED_EXPERT: Rules = {  # one that every token goes to, behind a gate
    **_mlp("mlp.shared_experts", "mlp.shared_expert"),
    "mlp.shared_experts.gate_weight": Whole("mlp.shared_expert_gate.weight"),
}


def qwen_mixture(config: PretrainedConfig) -> dict[str, Any]:
    """Router of Qwen's mixtures: with norm_topk_prob the chosen experts' weights sum to 1: softmax after the choice."""
    return expert_settings(config) | {"moe_router_pre_softmax": not config.norm_topk_prob}


def mixture(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings that GLM's mixtures share with DeepSeek's. Where there is one group of experts, none is left
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


def glm(config: PretrainedConfig) -> dict[str, Any]:
    """Neighbouring channels are turned together, in a part of each head."""
    return plain(bool(config.attention_bias)) | {"rotary_interleaved": True}


def gpt_oss(config: PretrainedConfig) -> dict[str, Any]:
    """A window of Megatron's counts the positions before one's own. Gates are turned as by GELU's sigmoid form (alpha
    1.702), and both halves clamped first."""
    from megatron.core.fusions.fused_bias_geglu import quick_gelu  # once the stand-in for CUDA is there

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


_QWEN3, _GLM = ATTENTION | HEAD_NORMS, ATTENTION | BIASES | FUSED_MLP | NORMS
FAMILIES: Mapping[str, Family] = {
    "llama": Family(ATTENTION | MLP | NORMS, lambda config: plain()),
    "qwen2": Family(ATTENTION | BIASES | MLP | NORMS, lambda config: plain(qkv_bias=True)),
    "qwen3": Family(_QWEN3 | MLP | NORMS, lambda config: plain(head_norms=True)),
    "mixtral": Family(
        ATTENTION | MIXTRAL_EXPERTS | NORMS,
        lambda config: plain() | expert_settings(config) | {"moe_router_pre_softmax": False},
    ),
    "qwen2_moe": Family(
        ATTENTION | BIASES | MLP | EXPERTS | GATED_SHARED_EXPERT | NORMS,
        lambda config: plain(qkv_bias=True) | qwen_mixture(config) | {"moe_shared_expert_gate": True},
    ),
    "qwen3_moe": Family(_QWEN3 | MLP | EXPERTS | NORMS, lambda config: plain(head_norms=True) | qwen_mixture(config)),
    "glm": Family(_GLM, glm),
    "glm4": Family(_GLM | OUTPUT_NORMS, glm, norms_outputs=True),
    "glm4_moe": Family(
        _QWEN3 | BIASES | MLP | EXPERTS | CORRECTION | SHARED_EXPERTS | NORMS,
        lambda config: corrected(config) | plain(bool(config.attention_bias), bool(config.use_qk_norm)),
    ),
    "deepseek_v2": Family(
        LATENT_ATTENTION | MLP | EXPERTS | SHARED_EXPERTS | NORMS,
        lambda config: latent(config) | mixture(config) | {"moe_router_pre_softmax": True},
    ),
    "deepseek_v3": Family(
        LATENT_ATTENTION | MLP | EXPERTS | CORRECTION | SHARED_EXPERTS | NORMS,
        lambda config: latent(config) | corrected(config),
    ),
    "gpt_oss": Family(SINKS | ATTENTION | BIASES | OUTPUT_BIAS | GPT_OSS_EXPERTS | NORMS, gpt_oss),
}
"""Forms by their name in `MegatronForm` (roll/configs/tables/families.py)."""
