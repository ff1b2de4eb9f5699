"""Weights that ranks have put together again."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from roll.distributed.strategy.fsdp2.sharding import whole_weight
from tests.helpers.processes import RankPool

SHAPES = ((6, 4), (7, 4), (1, 3), (5,))  # the second rank has fewer rows of all but the first, of the third none


def weight(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(float(torch.tensor(shape).prod())).view(shape) / 4


def put_together(num_ranks: int) -> list[list[float]]:
    """The weights of SHAPES in bf16, sharded as FSDP2 does and put together; whether a rank alone has its own memory,
    last."""
    mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("shard",))
    shards = [distribute_tensor(weight(shape), mesh, [Shard(0)]) for shape in SHAPES]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every rank of a run would print it
        wholes = [whole_weight(shard, torch.bfloat16) for shard in shards]
    assert all(whole.dtype == torch.bfloat16 and whole.is_contiguous() for whole in wholes)
    assert [tuple(whole.shape) for whole in wholes] == [*SHAPES]
    is_same = whole_weight(shards[0], torch.float32).data_ptr() == shards[0].to_local().data_ptr()
    return [*(whole.flatten().tolist() for whole in wholes), [float(is_same)]]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_rows_of_all_ranks_are_the_weight(num_ranks: int, rank_pool: Callable[[int], RankPool]) -> None:
    expected = [weight(shape).flatten().tolist() for shape in SHAPES]
    for found in rank_pool(num_ranks).run(put_together, num_ranks):
        assert found == [*expected, [float(num_ranks == 1)]]
