"""Mixtral: Llama's attention, experts in every layer."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama
from roll.models.megatron.family import Columns, Family, GateUp, Rule, Whole, expert_settings

EXPERTS: dict[str, Rule] = {
    "mlp.router.weight": Whole("block_sparse_moe.gate.weight"),
    "mlp.experts.local_experts.{expert}.linear_fc1.weight": GateUp(
        "block_sparse_moe.experts.{expert}.w1.weight", "block_sparse_moe.experts.{expert}.w3.weight"
    ),
    "mlp.experts.local_experts.{expert}.linear_fc2.weight": Columns("block_sparse_moe.experts.{expert}.w2.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return llama.settings(config) | expert_settings(config) | {"moe_router_pre_softmax": False}


FAMILY = Family(llama.ATTENTION | EXPERTS | llama.NORMS, settings)
