"""FLOPs of a pass against a count of every product of the model, and peaks by the names that CUDA has."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.passes import forward_flops, peak_flops

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, tie_word_embeddings=False),
        Qwen3Config(**SIZES, tie_word_embeddings=True),
        Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=False),
    ],
    ids=lambda config: config.model_type,
)
def test_a_forward_pass_costs_what_torch_counts(config: LlamaConfig | Qwen3Config | Qwen3MoeConfig) -> None:
    """torch counts the products it makes. Eager attention makes those with later tokens as well: pairs are T x T then.
    Rotary embeddings are a product, too, of nothing that this formula counts: 1 % here."""
    shape, why_not = model_shape(config.to_dict())
    assert shape is not None, why_not
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    num_tokens = 16
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.arange(num_tokens)[None])
    assert counter.get_total_flops() == pytest.approx(forward_flops(shape, num_tokens, num_tokens**2), rel=0.02)


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.4),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_devices_are_known_by_their_names(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", ["NVIDIA RTX A4000", "NVIDIA A10G", "NVIDIA H100X", "NVIDIA GeForce RTX 4090 D", ""])
def test_what_is_not_in_the_table_is_not_guessed(name: str) -> None:
    assert peak_flops(name) is None
