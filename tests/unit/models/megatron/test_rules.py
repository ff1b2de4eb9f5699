"""Each rule: what a rank gets, and that all ranks together give the full tensors back."""

import pytest
import torch

from roll.models.megatron.family import (
    Columns,
    FusedGateUp,
    GateUp,
    InputRows,
    InterleavedGateUp,
    QueryKeyValue,
    Rows,
    Rule,
    Shapes,
    Vocabulary,
    Whole,
    padded_vocab_size,
)

SHAPES = Shapes(num_heads=4, num_kv_heads=2, head_dim=3, vocab_size=21)
RULES: dict[str, tuple[Rule, list[tuple[int, ...]]]] = {
    "whole": (Whole("w"), [(5,)]),
    "columns": (Columns("w"), [(4, 6)]),
    "vocabulary": (Vocabulary("w"), [(21, 5)]),
    "gate_up": (GateUp("g", "u"), [(6, 5), (6, 5)]),
    "fused": (FusedGateUp("gu"), [(12, 5)]),
    "interleaved": (InterleavedGateUp("gu"), [(5, 12)]),
    "interleaved_bias": (InterleavedGateUp("gu"), [(12,)]),
    "input_rows": (InputRows("w"), [(6, 4)]),
    "rows": (Rows("w"), [(6,)]),
    "qkv": (QueryKeyValue("q", "k", "v"), [(12, 5), (6, 5), (6, 5)]),
    "qkv_bias": (QueryKeyValue("q", "k", "v"), [(12,), (6,), (6,)]),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", list(RULES))
def test_parts_of_all_ranks_merge_to_the_full_tensors(name: str, size: int) -> None:
    rule, shapes = RULES[name]
    full = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    parts = [rule.split(full, rank, size, SHAPES) for rank in range(size)]
    assert len({part.shape for part in parts}) == 1
    merged = rule.merge(parts if rule.is_split else parts[:1], SHAPES)
    assert len(merged) == len(rule.names)
    for got, want in zip(merged, full, strict=True):
        assert torch.equal(got, want)


def test_rows_of_ranks_stand_with_those_they_belong_to() -> None:
    """4 heads, 2 key-value heads, one number per head: q0 q1 k0 v0 | q2 q3 k1 v1."""
    shapes = Shapes(num_heads=4, num_kv_heads=2, head_dim=1, vocab_size=1)
    query, key, value = torch.tensor([0.0, 1, 2, 3]), torch.tensor([10.0, 11]), torch.tensor([20.0, 21])
    rule = QueryKeyValue("q", "k", "v")
    assert rule.split([query, key, value], 0, 2, shapes).tolist() == [0, 1, 10, 20]
    assert rule.split([query, key, value], 1, 2, shapes).tolist() == [2, 3, 11, 21]
    gate, up = torch.arange(4.0)[:, None], 10 + torch.arange(4.0)[:, None]
    assert GateUp("g", "u").split([gate, up], 1, 2, SHAPES)[:, 0].tolist() == [2, 3, 12, 13]
    assert FusedGateUp("gu").split([torch.cat([gate, up])], 1, 2, SHAPES)[:, 0].tolist() == [2, 3, 12, 13]
    beside = torch.stack([gate[:, 0], up[:, 0]], dim=1).flatten()
    assert InterleavedGateUp("gu").split([beside[None]], 1, 2, SHAPES)[:, 0].tolist() == [2, 3, 12, 13]
    assert InterleavedGateUp("gu").split([beside], 1, 2, SHAPES).tolist() == [2, 3, 12, 13]
    given = torch.arange(8.0).view(4, 2)  # [in, out]
    assert torch.equal(InputRows("w").split([given], 1, 2, SHAPES), torch.tensor([[4.0, 6.0], [5.0, 7.0]]))
    full = torch.ones(21, 2)
    parts = [Vocabulary("w").split([full], rank, 2, SHAPES) for rank in range(2)]
    assert [int(part.sum()) for part in parts] == [32, 10]
    assert Vocabulary("w").merge(parts, SHAPES)[0].shape == (21, 2)


@pytest.mark.parametrize(("vocab", "ranks", "rows"), [(100, 1, 104), (100, 2, 112), (16, 2, 16), (151936, 8, 151936)])
def test_the_vocabulary_is_padded_to_equal_shares_of_eights(vocab: int, ranks: int, rows: int) -> None:
    assert padded_vocab_size(vocab, ranks) == rows
