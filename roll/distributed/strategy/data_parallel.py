"""What ranks that hold one model for different rows ask of each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.model_score import empty_micro_batch
from roll.types.batch import MicroBatch


def all_reduce(
    values: Sequence[float],
    context: RankContext,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> list[float]:
    """Elementwise over all ranks, or those of a group, in float64."""
    if context.world_size == 1:
        return [float(value) for value in values]
    total = torch.tensor(list(values), dtype=torch.float64, device=context.device)
    dist.all_reduce(total, op, group)
    return total.tolist()


def evened_out(micro_batches: Sequence[MicroBatch], context: RankContext) -> list[MicroBatch]:
    """These, and so many empty ones that all ranks make equally many passes."""
    most = int(all_reduce([len(micro_batches)], context, dist.ReduceOp.MAX)[0])
    return [*micro_batches, *[empty_micro_batch()] * (most - len(micro_batches))]
