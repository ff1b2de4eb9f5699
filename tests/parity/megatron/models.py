"""Small models of every family, with weights, biases and norms that all matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCAB_SIZE = 100  # not a multiple of what Megatron pads to: 104 rows on one rank, 112 on two
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


LATENT = {"deepseek_v2": DeepseekV2Config, "deepseek_v3": DeepseekV3Config, "glm4_moe_lite": Glm4MoeLiteConfig}
DENSE_GLM = {"glm": GlmConfig, "glm4": Glm4Config}
CORRECTED = {"glm4_moe": Glm4MoeConfig}


def _corrected(family: str, shape: dict[str, Any], changes: dict[str, Any]) -> PretrainedConfig:
    """Of GLM and DeepSeek: a layer without experts, and one with eight in four groups, of which two count."""
    experts: dict[str, Any] = {
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 4, "topk_group": 2,
    }  # fmt: skip
    if family in CORRECTED:
        return CORRECTED[family](
            **shape | experts | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True} | changes
        )
    latent: dict[str, Any] = {
        "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14,
        "num_key_value_heads": 4,
    }  # fmt: skip
    if family == "deepseek_v3":
        latent |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}  # as in its config.json; vLLM goes by them
    return LATENT[family](**shape | experts | latent | changes)


def _gpt_oss(given: dict[str, Any]) -> PretrainedConfig:
    """A window that the rows are longer than, and clamps that some of the channels reach."""
    own: dict[str, Any] = {
        "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0, "sliding_window": 3,
        "swiglu_limit": 0.4, "rope_parameters": YARN_ROPE | {"truncate": False},
    }  # fmt: skip
    return GptOssConfig(**own | given)


def config(family: str, **changes: object) -> PretrainedConfig:
    shape = SHAPE | changes
    heads = {"head_dim": 16} | changes  # not the hidden size through the number of heads
    if family == "llama":
        return LlamaConfig(**shape)  # type: ignore[arg-type]
    if family == "mistral":
        return MistralConfig(**shape)  # type: ignore[arg-type]
    if family == "qwen2":
        return Qwen2Config(**shape)  # type: ignore[arg-type]
    if family == "qwen3":
        return Qwen3Config(**shape | heads)  # type: ignore[arg-type]
    if family in DENSE_GLM:
        return DENSE_GLM[family](**shape | {"pad_token_id": 0} | heads)  # type: ignore[arg-type]
    if family == "gpt_oss":
        return _gpt_oss(shape | heads | changes)
    if family == "mixtral":
        return MixtralConfig(num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0, **shape)  # type: ignore[arg-type]
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    if family == "qwen2_moe":
        shared = {"shared_expert_intermediate_size": 40, "router_aux_loss_coef": 0.0}
        return Qwen2MoeConfig(**shape | experts | shared | changes)  # type: ignore[arg-type]
    if family in CORRECTED | LATENT:
        return _corrected(family, shape, changes)
    return Qwen3MoeConfig(**shape | experts | heads | {"router_aux_loss_coef": 0.0})  # type: ignore[arg-type]


def make(directory: Path, family: str, **changes: object) -> Path:
    """A model directory. Nothing is at its initial one or zero, so that a forgotten bias or norm shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(family, **changes), dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape)
                scale = 1.0 if name.endswith(".sinks") else 0.1
                parameter.copy_(1 + 0.1 * noise if "norm" in name else scale * noise)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.copy_(0.1 * torch.randn(buffer.shape))
    model.save_pretrained(directory)
    return directory


def corrections(directory: Path) -> dict[str, np.ndarray]:
    """What is added to scores for the choice of experts alone: stored, and not trained."""
    stored = load_file(directory / "model.safetensors")
    return {name: t.numpy() for name, t in stored.items() if name.endswith("e_score_correction_bias")}


def as_stored(weights: dict[str, np.ndarray], family: str) -> dict[str, np.ndarray]:
    """A state dict under the names of the model's files: transformers 5 holds all experts of a layer in one tensor, as
    gpt-oss' files do."""
    if family == "gpt_oss":
        return weights
    stored: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        prefix, _, last = name.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last, ())
        if prefix.endswith(".experts"):
            for expert, matrix in enumerate(values):
                for part, piece in zip(parts, np.split(matrix, len(parts)), strict=True):
                    stored[f"{prefix}.{expert}.{part}.weight"] = piece
        else:
            stored[name] = values
    if family != "mixtral":
        return stored
    renamed = {"mlp.": "block_sparse_moe.", "gate_proj.": "w1.", "up_proj.": "w3.", "down_proj.": "w2."}
    return {_replace(name, renamed): values for name, values in stored.items()}


def _replace(name: str, renamed: dict[str, str]) -> str:
    for old, new in renamed.items():
        name = name.replace(old, new)
    return name
