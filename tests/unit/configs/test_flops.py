"""FLOPs of a pass against a count of every product of the model, and peaks by the names that CUDA has."""

import json
from collections.abc import Mapping

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from roll.configs.memory.hybrids import HYBRIDS
from roll.configs.memory.mamba_types import MAMBA_TYPES
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.passes import forward_flops, peak_flops, training_flops
from tests.unit.configs.memory.test_kept import EVERY, wide_config

TOKENS, SLOW = 16, pytest.mark.slow
FIRST = ("diffllama", "gpt2", "hrm_text", "llama", "longcat_flash", "qwen3", "qwen3_moe")
OTHERS: Mapping[str, str] = {
    "falcon": "sdpa on CPUs, which torch does not count",
    "llama4_text": "every expert for every token, most of them on zeros",
}
"""Types that transformers computes in another way, or torch does not count."""
PLAIN = sorted(set(EVERY) - OTHERS.keys() - HYBRIDS.keys() - MAMBA_TYPES.keys())
NOT_LEARNED = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")
"""Types of which a part has no gradient: what chooses the tokens that a layer sees."""


@pytest.mark.parametrize("kind", [kind if kind in FIRST else pytest.param(kind, marks=SLOW) for kind in PLAIN])
def test_an_update_costs_what_torch_counts(kind: str) -> None:
    """torch counts the products it makes. Eager attention makes those with later tokens as well: pairs are T x T then.
    Rotary embeddings are a product, too, of nothing that this formula counts, and so are a mixture's weights. Types
    with recurrences are left out, which are counted token by token, and not as the torch form computes them."""
    config = wide_config(kind)
    shape, why_not = model_shape(json.loads(config.to_json_string()))
    assert shape is not None, why_not
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.arange(TOKENS)[None], use_cache=False).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    idle = 0.05 if kind == "longcat_flash" else 0.02  # of its experts some do nothing, and a few tokens chose them
    assert forward == pytest.approx(forward_flops(shape, TOKENS, TOKENS**2), rel=idle)
    if kind not in NOT_LEARNED:
        assert counter.get_total_flops() == pytest.approx(training_flops(shape, TOKENS, TOKENS**2), rel=idle + 0.01)


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
