"""Which mixtures of transformers can be given their experts."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from roll.models.routers import RouterReplay

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "num_experts_per_tok": 2,
}  # fmt: skip
NAMED = {"moe_intermediate_size": 24, "num_experts": 8}
ROUTED = {
    "moe_intermediate_size": 24, "n_routed_experts": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14,
    "num_key_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 8},
    "qwen2_moe": NAMED | {"shared_expert_intermediate_size": 24},
    "qwen3_moe": NAMED | {"head_dim": 16},
    "olmoe": {"num_experts": 8},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},
    "glm4_moe": ROUTED | {"head_dim": 16},
    "deepseek_v2": ROUTED | LATENT,
    "deepseek_v3": ROUTED | LATENT,
}


@pytest.mark.parametrize("kind", list(MODELS))
def test_experts_that_are_given_are_those_that_compute(kind: str) -> None:
    """Told are those given; what the model says changes with them, and a gradient reaches the routers."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SHAPE | MODELS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager")
    replay, ids = RouterReplay(model), torch.arange(3, 10)[None]
    free = model(input_ids=ids).logits
    own = replay.reported()
    assert own.shape == (7, 2, 2)
    replay.give(own)
    assert torch.allclose(model(input_ids=ids).logits, free, atol=1e-6)
    other = (own + 3) % 8
    replay.give(other)
    given = model(input_ids=ids).logits
    assert torch.equal(replay.reported(), other)
    assert (given - free).abs().max() > 1e-6
    given.square().sum().backward()
    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    assert all(router.weight.grad.abs().max() > 0 for router in routers)  # type: ignore[union-attr]
