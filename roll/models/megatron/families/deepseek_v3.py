"""DeepSeek-V3 and DeepSeek-R1: latent attention; experts chosen as GLM-4.5 chooses them."""

from typing import Any

from transformers import PretrainedConfig

from roll.models.megatron.families import deepseek_v2, glm4_moe, llama, qwen3_moe
from roll.models.megatron.family import Family


def settings(config: PretrainedConfig) -> dict[str, Any]:
    return deepseek_v2.latent_attention(config) | glm4_moe.corrected(config)


FAMILY = Family(
    deepseek_v2.ATTENTION | llama.MLP | qwen3_moe.EXPERTS | glm4_moe.CORRECTION | glm4_moe.SHARED_EXPERTS | llama.NORMS,
    settings,
)
