"""GLM-4 (9B): neighbouring channels are turned together, in a part of each head; gate and up are one matrix."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import llama, qwen2
from roll.models.megatron.family import Columns, Family, FusedGateUp, Rule

MLP: dict[str, Rule] = {
    "mlp.linear_fc1.weight": FusedGateUp("mlp.gate_up_proj.weight"),
    "mlp.linear_fc2.weight": Columns("mlp.down_proj.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "add_bias_linear": False,
        "add_qkv_bias": bool(config.attention_bias),
        "qk_layernorm": False,
        "rotary_interleaved": True,
    }


FAMILY = Family(llama.ATTENTION | qwen2.BIASES | MLP | llama.NORMS, settings)
