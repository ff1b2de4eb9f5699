"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) under any tensor-parallel size."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.tensor_parallel import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from torch import nn

from roll.models.megatron.norm import Norm

_EPS = 1e-6  # of the norms of latents in every model of Hugging Face's, whatever rms_norm_eps says


class LatentNorm(Norm):
    """The norm of a latent."""

    def __init__(self, config: Any, hidden_size: int, eps: float = _EPS, **unused: Any):
        super().__init__(config, hidden_size, _EPS)


class LatentAttention(MLASelfAttention):
    """Megatron (0.16) gathers what its projections to latents give, and cuts the gradient again: the key that all heads
    share has a gradient from all of them, and each tensor-parallel rank would keep that of its own. Here a rank has the
    latents of its positions, as it has hidden states (mixtures are sequence parallel wherever they are tensor
    parallel), and Megatron sums the gradient of that key.

    It takes the frequencies of the rotary embedding, and the factor on its vectors, from `rotate_by`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        own: Any = self
        if self.config.tensor_model_parallel_size > 1:
            own.linear_kv_down_proj.register_forward_hook(self._whole_latent)

    def rotate_by(self, frequencies: torch.Tensor, factor: float) -> None:
        rope = _Rotary(2 * len(frequencies), 1.0, cp_group=self.pg_collection.cp)
        rope.inv_freq, rope.factor = frequencies, factor
        self.rotary_pos_emb = rope

    def _whole_latent(self, linear: nn.Module, inputs: Any, outputs: Any) -> Any:
        output, bias = outputs
        whole = gather_from_tensor_model_parallel_region(output)
        return scatter_to_sequence_parallel_region(whole), bias


class _Rotary(RotaryEmbedding):
    """Angles as Megatron's latent attention asks for them where rope_type is yarn: with the factor on the vectors."""

    factor: float

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, float]:  # type: ignore[override]
        return super().forward(*args, **kwargs), self.factor
