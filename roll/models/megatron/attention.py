"""Causal attention with sinks (gpt-oss): a learned logit of each head stands among those of the keys, and what it gets
of the softmax goes nowhere."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right


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
        seen = slice(max(0, end - block.shape[2] - window + 1), end)
        outputs.append(_block(block, key[:, :, seen], value[:, :, seen], sinks, window, scale, dropout))
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
    own = (sinks / scale)[None, :, None, None].expand(*query.shape[:3], 1).to(query.dtype)
    first = functional.one_hot(torch.tensor(key.shape[3], device=key.device)).to(key.dtype)
    q = torch.cat([query, own], dim=3)
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
    """Who sees whom, the sink before the keys. Without a window on a GPU the mask without elements that torch's flash
    attention knows.

    Example: the last 2 of 3, window 2: [[1, 1, 1, 0], [1, 0, 1, 1]].
    """
    if window is None and device.type == "cuda":
        return causal_lower_right(num_queries, num_keys + 1)
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
    if window is not None:
        seen = seen.triu(num_keys - num_queries - window + 1)
    return functional.pad(seen, (1, 0), value=True)
