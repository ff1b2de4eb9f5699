"""Layers that norm what attention and MLP give, as well as what they take (GLM-4-0414's dense models)."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from roll.models.megatron.norm import Norm


class NormedLayer(TransformerLayer):
    """A layer without experts and without biases behind attention and MLP."""

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.post_self_attn_layernorm = _norm_behind(self.self_attention, config)
        self.post_mlp_layernorm = _norm_behind(self.mlp, config)


def _norm_behind(part: Any, config: TransformerConfig) -> Norm:
    norm = Norm(config, config.hidden_size, config.layernorm_epsilon)

    def normed(part: nn.Module, inputs: Any, outputs: tuple[torch.Tensor, None]) -> tuple[torch.Tensor, None]:
        return norm(outputs[0]), None

    part.register_forward_hook(normed)
    return norm
