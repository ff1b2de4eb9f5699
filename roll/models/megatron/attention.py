"""Causal attention with sinks (gpt-oss): a learned logit of each head stands among those of the keys, and what it gets
of the softmax goes nowhere."""

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region, scatter_to_sequence_parallel_region
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from roll.platforms.table import platform_of


def attend_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    window: int | None,
    scale: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """query [b, h, s, d], the last positions of key and value [b, g, t, d]; sinks [h] -> [b, h, s, d]. A position sees
    itself and those before it, of these the last `window` where one is given.

    With a window queries go in blocks as long as it, so that no mask or scores of the whole width are ever made."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if window is None or window >= num_keys:
        return _block(query, key, value, sinks, None, scale, dropout)
    outputs = []
    for start in range(0, num_queries, window):
        block = query[:, :, start : start + window]
        end = num_keys - num_queries + start + block.shape[2]
        visible = slice(max(0, end - block.shape[2] - window + 1), end)
        outputs.append(_block(block, key[:, :, visible], value[:, :, visible], sinks, window, scale, dropout))
    return torch.cat(outputs, dim=2)


def _block(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    window: int | None,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    """The sink is a first key that all positions see, with a value of zeros. In a channel of its own queries hold the
    sinks of their heads, keys 0 and the first one 1, so that heads that share keys have sinks of their own."""
    sink_column = (sinks / scale)[None, :, None, None].expand(*query.shape[:3], 1).to(query.dtype)
    first = functional.one_hot(torch.tensor(key.shape[3], device=key.device)).to(key.dtype)
    q = torch.cat([query, sink_column], dim=3)
    k = torch.cat([first.expand(*key.shape[:2], 1, -1), functional.pad(key, (0, 1))], dim=2)
    v = functional.pad(value, (0, 1, 1, 0))
    out = functional.scaled_dot_product_attention(
        q, k, v,
        attn_mask=_mask(query.shape[2], key.shape[2], window, key.device),
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return out[..., : value.shape[3]]


def _mask(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Build the attention mask, with the sink before the keys. Without a window, on a GPU, it is the mask without
    elements that torch's flash attention knows.

    Example: the last 2 of 3, window 2: [[1, 1, 1, 0], [1, 0, 1, 1]].
    """
    if window is None and platform_of(device).has_flash_attention:
        return causal_lower_right(num_queries, num_keys + 1)
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
    if window is not None:
        visible = visible.triu(num_keys - num_queries - window + 1)
    return functional.pad(visible, (1, 0), value=True)


# Norms of Megatron's local layers.


class Norm(torch.nn.RMSNorm):
    """RMSNorm. Under sequence parallelism each rank sees some positions only, and Megatron sums the weight's
    gradient."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **unused: Any):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


# Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) under any tensor-parallel size.

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
        module: Any = self
        if self.config.tensor_model_parallel_size > 1:
            module.linear_kv_down_proj.register_forward_hook(self._whole_latent)

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
