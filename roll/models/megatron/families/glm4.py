"""GLM-4-0414, dense: GLM-4 with norms on what attention and MLP give, too."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import glm, llama, qwen2
from roll.models.megatron.family import Family, Rule, Whole

OUTPUT_NORMS: dict[str, Rule] = {
    "post_self_attn_layernorm.weight": Whole("post_self_attn_layernorm.weight"),
    "post_mlp_layernorm.weight": Whole("post_mlp_layernorm.weight"),
}


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return glm.settings(config)


FAMILY = Family(llama.ATTENTION | qwen2.BIASES | glm.MLP | llama.NORMS | OUTPUT_NORMS, settings, norms_outputs=True)
