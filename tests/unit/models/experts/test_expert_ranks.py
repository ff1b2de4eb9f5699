"""Experts of a mixture on several ranks: what one of them computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeForCausalLM

from roll.models.experts.ranks import _computed, _Share, experts_of


def config(implementation: str) -> Qwen3MoeConfig:
    made = Qwen3MoeConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=4,
        mlp_only_layers=[0],
    )  # fmt: skip
    made._experts_implementation = implementation
    return made


def experts(implementation: str) -> nn.Module:
    torch.manual_seed(0)
    module = Qwen3MoeExperts(config(implementation))
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module


def test_the_experts_of_every_sparse_layer_are_found() -> None:
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(config("eager"))
    assert [name for name, _ in experts_of(model)] == ["model.layers.1.mlp.experts"]
    # They know nothing of ranks, which those of 5.19 do.
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(config("eager"))
    for module in model.modules():
        vars(module).pop("_is_expert_parallel", None)
    assert [name for name, _ in experts_of(model)] == ["model.layers.1.mlp.experts"]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_a_rank_computes_with_its_own_weights(implementation: str) -> None:
    """The last two of four experts are the first two of the rank that has them."""
    module = experts(implementation)
    mine: dict[str, Any] = {name: weight[2:] for name, weight in module.named_parameters()}
    rows, chosen = torch.randn(5, 8), torch.tensor([3, 2, 2, 3, 2])
    got = _computed(_Share(module, mine, 2), rows, chosen - 2)
    torch.testing.assert_close(got, module(rows, chosen[:, None], torch.ones(5, 1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_a_rank_without_tokens_has_gradients_of_zeros(implementation: str) -> None:
    module = experts(implementation)
    weights = dict(module.named_parameters())
    rows = torch.zeros(0, 8, requires_grad=True)
    found = _computed(_Share(module, weights, 4), rows, torch.zeros(0, dtype=torch.long))
    assert found.shape == (0, 8)
    found.sum().backward()
    assert rows.grad is not None
    for weight in module.parameters():
        assert weight.grad is not None and not weight.grad.any()
