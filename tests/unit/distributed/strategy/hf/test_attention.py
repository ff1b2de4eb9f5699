"""Attention of one new token against torch's own."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from roll.distributed.strategy.hf.decoder import decode_attention


class Grouped(nn.Module):
    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("mask_kind", ["none", "additive", "bool"])
@pytest.mark.parametrize("num_queries", [1, 4])
def test_it_equals_attention_with_repeated_keys_and_values(
    dtype: torch.dtype, tolerance: float, mask_kind: str, num_queries: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, 6, num_queries, 8, generator=generator).to(dtype)
    buffer = torch.randn(2, 5, 2, 20, 8, generator=generator).to(dtype)
    key, value = buffer[:, :, :, :13]  # views of a larger buffer, as the cache gives them
    visible = torch.arange(13) >= torch.tensor([0, 3, 12, 5, 1])[:, None]
    allowed = visible[:, None, None]
    mask = {
        "none": None,
        "bool": allowed,
        "additive": torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min),
    }[mask_kind]
    output, _ = decode_attention(Grouped(), query, key, value, mask, scaling=0.3, is_causal=False)
    expected = scaled_dot_product_attention(
        query.float(),
        key.float().repeat_interleave(3, 1),
        value.float().repeat_interleave(3, 1),
        allowed if mask_kind != "none" else None,
        scale=0.3,
    )
    assert output.shape == (5, num_queries, 6, 8)
    assert (output.float() - expected.transpose(1, 2)).abs().max() < tolerance
