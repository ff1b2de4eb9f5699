"""What a config.json tells of whether Megatron can build the model. Read before a run starts, so it needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.strategies.model_numbers import unread_number

ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those that do not change with the length of a row


@dataclass(frozen=True)
class KnownFamily:
    """`file` of roll.models.megatron.families holds its `FAMILY`. `only` gives keys of config.json whose other values
    this form of the model cannot express, with the one that it can."""

    file: str
    only: Mapping[str, object]


_GATED = {"hidden_act": "silu"}
_CORRECTED = {"norm_topk_prob": True, **_GATED}
_DEEPSEEK_V3 = {"attention_bias": False, "rope_interleave": True, **_CORRECTED}
_QWEN3 = {"attention_bias": False, "use_sliding_window": False, **_GATED}

FAMILIES: Mapping[str, KnownFamily] = {  # by the model_type of config.json
    "llama": KnownFamily("llama", {"attention_bias": False, "mlp_bias": False, **_GATED}),
    "qwen2": KnownFamily("qwen2", {"use_sliding_window": False, **_GATED}),
    "qwen3": KnownFamily("qwen3", _QWEN3),
    "mixtral": KnownFamily("mixtral", {"sliding_window": None, **_GATED}),
    "qwen2_moe": KnownFamily("qwen2_moe", {"qkv_bias": True, "use_sliding_window": False, **_GATED}),
    "qwen3_moe": KnownFamily("qwen3_moe", _QWEN3),
    "glm": KnownFamily("glm", _GATED),
    "glm4": KnownFamily("glm4", _GATED),
    "glm4_moe": KnownFamily("glm4_moe", _CORRECTED),
    "deepseek_v2": KnownFamily("deepseek_v2", {"attention_bias": False, "mlp_bias": False, **_GATED}),
    "deepseek_v3": KnownFamily("deepseek_v3", _DEEPSEEK_V3),
    "glm4_moe_lite": KnownFamily("deepseek_v3", _DEEPSEEK_V3),
    "gpt_oss": KnownFamily("gpt_oss", {"attention_bias": True, "swiglu_alpha": 1.702}),
}

_NORM_KEY = "norm_topk_prob"
_NORMS_CHOSEN: Mapping[str, bool] = {"mixtral": True, "gpt_oss": True, "qwen2_moe": False, "qwen3_moe": False}
"""Families whose routers weigh experts by a softmax, and whether it is over the chosen ones if no key says so."""


def family_problem(model: Mapping[str, Any]) -> str | None:
    """Why Megatron cannot build the model of this config.json, or None. Keys that it leaves out are not judged."""
    model_type = model.get("model_type")
    if not isinstance(model_type, str):
        return None
    if model_type not in FAMILIES:
        return (
            f"megatron knows no {model_type} models; it knows {', '.join(FAMILIES)}. docs/adding_a_model.md shows how "
            "to add one; the deepspeed strategies take any Hugging Face model."
        )
    if quantized := model.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
        return (
            f"megatron: weights in 8 or 4 bits (quantization_config, quant_method {method!r}) are not read. Start from "
            "a copy in bf16, without quantization_config in its config.json: from_pretrained of transformers, "
            "dequantized, and save_pretrained (which leaves heads for further tokens out; publishers of such models "
            "have scripts that keep them)."
        )
    for key, supported in FAMILIES[model_type].only.items():
        if model.get(key, supported) != supported:
            return (
                f"megatron: {model_type} with {key} {model[key]!r} is not supported (only {supported!r}); "
                "the deepspeed strategies take any Hugging Face model."
            )
    if unread := unread_number(model):
        return f"megatron: config.json has {unread}."
    norms_chosen = model_type in _NORMS_CHOSEN and model.get(_NORM_KEY, _NORMS_CHOSEN[model_type])
    if norms_chosen and model.get("num_experts_per_tok") == 1:
        return (
            f"megatron: {model_type} with num_experts_per_tok 1 is not supported: one expert's weight is always 1, so "
            "that its router has no gradient. The deepspeed strategies take any Hugging Face model."
        )
    rope = model.get("rope_parameters") or model.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else "default"
    if kind not in ROPE_TYPES:
        return f"megatron: rope_type {kind!r} is not supported; {', '.join(ROPE_TYPES)} are."
    if kind == "yarn" and rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "megatron: rope_type 'yarn' on a part of a head (partial_rotary_factor) is not supported."
    return None
