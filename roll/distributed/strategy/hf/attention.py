"""Attention of one new token per row, for decoding on a CPU."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from roll.models.sequences.attention import OTHER_FORMS, whole_sdpa

DECODE_ATTENTION = "roll_decode"


def use_decode_attention(model: PreTrainedModel) -> None:
    """Makes a model that runs sdpa on a CPU decode with `decode_attention`."""
    config = model.config.get_text_config()
    if model.device.type == "cpu" and config._attn_implementation == "sdpa":
        AttentionInterface.register(DECODE_ATTENTION, decode_attention)
        AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)
        model.set_attn_implementation(DECODE_ATTENTION)


def decode_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Query [B, heads, 1, D] with keys and values [B, groups, T, D] -> [B, 1, heads, D]. Longer queries go to sdpa.

    Hugging Face's sdpa copies keys and values once per query head as soon as there is a mask, and torch's CPU kernel is
    made for long queries: together a third of a step of a small model.
    """
    if query.shape[2] != 1 or any(kwargs.get(name) is not None for name in OTHER_FORMS):
        return whole_sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    batch, heads, _, width = query.shape
    groups = key.shape[1]
    is_additive = attention_mask is None or attention_mask.dtype == query.dtype
    if query.dtype != torch.float32 or not is_additive:  # softmax in half precision would lose digits
        grouped = scaled_dot_product_attention(
            query, key, value, attention_mask, scale=scaling, enable_gqa=groups != heads
        )
        return grouped.transpose(1, 2), None
    scaled = query * (width**-0.5 if scaling is None else scaling)
    scores = torch.matmul(scaled.view(batch, groups, heads // groups, width), key.transpose(2, 3))
    if attention_mask is not None:
        scores += attention_mask
    return torch.matmul(torch.softmax(scores, -1), value).view(batch, 1, heads, value.shape[-1]), None
