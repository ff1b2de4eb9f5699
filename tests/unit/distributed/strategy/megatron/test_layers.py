from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.attention.bias import causal_lower_right

from roll.models.megatron import layers
from roll.models.megatron.layers import CoreAttention, last_positions_mask, zigzag
from roll.models.sequences.packed_attention import _row_by_row


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_chunk_of_a_context_parallel_rank_sees_what_comes_before_each_of_its_positions(rank: int) -> None:
    """And that is the mask which torch has a name for, and a fast kernel: a GPU is given the name."""
    positions = zigzag(24, 3, rank)
    for chunk in positions.chunk(2):
        seen = int(chunk[-1]) + 1
        mask = last_positions_mask(len(chunk), seen, torch.device("cpu"))
        assert torch.equal(mask, chunk[:, None] >= torch.arange(seen))
        assert torch.equal(mask, causal_lower_right(len(chunk), seen)._materialize())


def test_the_kernel_for_packs_is_asked_for_what_each_row_alone_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no such kernel: rows one by one stand in for it, from what it is given."""
    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=4, num_query_groups=2)
    groups: Any = SimpleNamespace(cp=SimpleNamespace(size=lambda: 1))
    core = CoreAttention(config, 1, None, "self", pg_collection=groups).eval()
    query, key, value = (torch.randn(9, heads, 8) for heads in (4, 2, 2))
    ends = torch.tensor([0, 5, 6, 9], dtype=torch.int32)
    pack = PackedSeqParams("thd", ends, ends, ends, ends, 5, 5)
    want = core(query, key, value, None, packed_seq_params=pack)
    asked: list[tuple[int, float | None]] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int, scale: float):
        asked.append((longest, scale))
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        return _row_by_row(q, k, v, starts, scale, 0)[0]

    monkeypatch.setattr(layers, "attend_by_kernel", kernel)
    monkeypatch.setattr(core, "_packs_by_kernel", lambda query, value: True)
    torch.testing.assert_close(core(query, key, value, None, packed_seq_params=pack), want)
    assert asked == [(5, core.scale)]


@pytest.mark.parametrize("counts", [(4, 0, 5), (0, 0, 3), (0, 0, 0)], ids=str)
def test_a_grouped_product_is_that_of_each_expert_with_its_rows(counts: tuple[int, ...]) -> None:
    """Values and gradients, also of experts that no row chose, which learn with zeros."""
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    states = torch.randn(sum(counts), 16, requires_grad=True)
    weights = [torch.randn(24, 16, requires_grad=True) for _ in counts]
    leaves, pull = [states, *weights], torch.randn(sum(counts), 24)
    one_by_one = torch.cat([part @ weight.T for part, weight in zip(states.split(counts), weights, strict=True)])
    product = layers.grouped_product(states, ends, weights)
    torch.testing.assert_close(product, one_by_one)
    found = torch.autograd.grad(product, leaves, pull)
    torch.testing.assert_close(found, torch.autograd.grad(one_by_one, leaves, pull))
