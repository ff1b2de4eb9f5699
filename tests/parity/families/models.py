"""A small model of every type that was tried, with every number that config.json may have far from neutral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

VOCAB_SIZE = 64
LAYERS = 4
# Names that types have for the same sizes; each takes those that it knows.
_COUNTS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "max_position_embeddings": 128, "n_positions": 128, "index_n_heads": 16,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
} | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS) | dict.fromkeys(
    ("num_attention_heads", "swa_num_attention_heads", "n_head", "n_heads", "attention_heads", "mamba_n_heads",
     "mamba_num_heads", "linear_num_heads", "linear_num_value_heads", "num_experts", "num_local_experts",
     "n_routed_experts", "index_topk"),
    4,
) | dict.fromkeys(
    ("num_key_value_heads", "swa_num_key_value_heads", "num_global_key_value_heads", "linear_num_key_heads",
     "num_experts_per_tok", "moe_topk"),
    2,
) | dict.fromkeys(
    ("n_group", "topk_group", "n_groups", "n_shared_experts", "num_shared_experts", "first_k_dense_replace",
     "decoder_sparse_step", "zero_expert_num", "mamba_expand"),
    1,
) | {"vocab_size_per_layer_input": None, "num_kv_shared_layers": 0, "mlp_only_layers": []}  # fmt: skip
_WIDTHS: dict[str, int] = {"rotary_dim": 8} | dict.fromkeys(
    ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "mamba_d_ssm"), 32
) | dict.fromkeys(
    ("intermediate_size", "intermediate_size_mlp", "n_inner", "ffn_dim", "ffn_hidden_size"), 48
) | dict.fromkeys(
    ("head_dim", "swa_head_dim", "swa_v_head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
     "v_head_dim", "index_head_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "mamba_d_head",
     "mamba_head_dim", "mamba_d_state", "ssm_state_size", "hidden_size_per_layer_input"),
    8,
) | dict.fromkeys(
    ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "expert_ffn_hidden_size",
     "q_lora_rank", "kv_lora_rank", "qk_head_dim"),
    16,
)  # fmt: skip
_FAR: dict[str, Any] = {
    "attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0, "logits_soft_cap": 2.0,
    "moe_router_logit_softcapping": 2.0, "swiglu_limit": 1.0, "clip_qkv": 0.5,
    "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2, "attention_chunk_size": 4,
    "attention_multiplier": 0.9, "query_pre_attn_scalar": 2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
    "logits_scaling": 2.0, "logit_scale": 0.3, "lm_head_multiplier": 0.5, "key_multiplier": 0.5,
    "attention_in_multiplier": 1.5, "attention_out_multiplier": 1.5,
    "routed_scaling_factor": 2.5, "route_scale": 2.5, "router_jitter_noise": 0.3, "input_jitter_noise": 0.3,
    "use_qk_norm": True, "qk_layernorm": True, "attention_bias": True, "mlp_bias": True,
    "scale_attn_by_inverse_layer_idx": True, "floor_scale": 4, "attn_scale": 0.5,
} | dict.fromkeys(
    ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout", "hidden_dropout_prob", "residual_dropout",
     "activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attn_dropout", "layerdrop"),
    0.5,
)  # fmt: skip
_ALL_HEADS: dict[str, Any] = {"num_key_value_heads": 4}
_HYBRID: dict[str, Any] = {"layer_types": ["full_attention", "linear_attention"] * 2}
_OWN: dict[str, dict[str, Any]] = dict.fromkeys(
    (
        *("deepseek_v2", "deepseek_v32", "axk1", "axk2", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear"),
        *("longcat_flash", "youtu"),
    ),
    _ALL_HEADS,
) | {
    "deepseek_v3": _ALL_HEADS | {"n_group": 2},
    "cwm": {"bos_token_id": 1, "eos_token_id": [1]},
    "diffllama": {"attention_dropout": 0.0},  # it refuses any
    "falcon": {"alibi": True, "new_decoder_architecture": False, "multi_query": False},
    "gemma3_text": {"attn_logit_softcapping": None},  # it has the key, and no cap
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 4},
    "lfm2": {"layer_types": ["full_attention", "conv"] * 2},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"] * 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8},
    "bamba": {"attn_layer_indices": [0, 2]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 0},
    "granitemoehybrid": _HYBRID,
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 3.0, "original_max_position_embeddings": 4,
            "mscale": 0.7, "mscale_all_dim": 1.3, "llama_4_scaling_beta": 0.5,
        }
    },
}  # fmt: skip
_SHARP = {"gemma4_text": 0.1, "gemma4_unified_text": 0.1}  # their attention has no scale: larger ones lose digits
RIGHT: dict[str, dict[str, Any]] = {
    "falcon": {"attn_implementation": "sdpa"},  # eager attention adds alibi twice
    "youtu": {"pad_token_id": None},  # else loading empties that token's row of the embedding, and of a tied head
}
"""What transformers must be given to compute the model of a type with nothing left out."""


def tiny_config(kind: str, scale: int = 1, **changes: Any) -> PretrainedConfig:
    """Four layers, of every kind that the type has, or half of them with a window; `scale` times as wide."""
    # engines put classes of their own into AutoConfig where they are imported
    known = getattr(transformers, CONFIG_MAPPING_NAMES[kind])()
    defaults = known.to_dict()
    every = _COUNTS | {key: scale * width for key, width in _WIDTHS.items()} | _FAR
    values = {key: value for key, value in every.items() if key in defaults or hasattr(known, key)}
    if "vocab_size_per_layer_input" in values:
        values["vocab_size_per_layer_input"] = changes.get("vocab_size", VOCAB_SIZE)
    if kind == "falcon":
        values.pop("head_dim")  # follows from the others
    if isinstance(layers := defaults.get("layer_types"), list):
        kinds = list(dict.fromkeys(layers))
        if kinds == ["full_attention"] and "sliding_window" in defaults:
            kinds.append("sliding_attention")
        values["layer_types"] = (kinds * LAYERS)[:LAYERS]
    if isinstance(defaults.get("mlp_layer_types"), list):
        values["mlp_layer_types"] = ["dense", *["sparse"] * (LAYERS - 1)]
    return type(known)(**values | _OWN.get(kind, {}) | changes)


def save_tiny(kind: str, directory: Path, spread: float = 0.25, **changes: Any) -> Path:
    """A model of a type with weights, norms, sinks and biases of routers that all matter. `spread` of its matrices:
    larger ones show more, and lose more digits."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(kind, **changes), dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "sink" in name:
                parameter.copy_(noise)
            elif parameter.dim() > 1:
                parameter.copy_(noise * min(spread, _SHARP.get(kind, spread)))
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            else:
                parameter.add_(noise * 0.1)
        for name, buffer in model.named_buffers():
            if "bias" in name:
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    model._weight_conversions = get_model_conversion_mapping(model, add_legacy=False)
    weights = revert_weight_conversion(model, model.state_dict())
    weights = {name: weight for name, weight in weights.items() if name not in model.all_tied_weights_keys}
    model.config.save_pretrained(directory)  # model.save_pretrained imports DeepSpeed, for many seconds
    save_file({name: weight.clone() for name, weight in weights.items()}, directory / "model.safetensors")
    return directory


def right_model(kind: str, directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model as transformers computes it with nothing left out."""
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": dtype} | RIGHT.get(kind, {})
    return AutoModelForCausalLM.from_pretrained(directory, **options).eval()
