import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

from roll.models.megatron.layers import last_positions_mask, zigzag


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_chunk_of_a_context_parallel_rank_sees_what_comes_before_each_of_its_positions(rank: int) -> None:
    """And that is the mask which torch has a name for, and a fast kernel: a GPU is given the name."""
    positions = zigzag(24, 3, rank)
    for chunk in positions.chunk(2):
        seen = int(chunk[-1]) + 1
        mask = last_positions_mask(len(chunk), seen, torch.device("cpu"))
        assert torch.equal(mask, chunk[:, None] >= torch.arange(seen))
        assert torch.equal(mask, causal_lower_right(len(chunk), seen)._materialize())
