"""A rank's share of the distributed optimizer's state, as blocks of whole tensors.

A rank holds a range of each flattened parameter's fp32 copy and moments. Megatron's own format for any layout gathers
whole buffers on one rank before it writes, and gives every rank whole tensors when it reads. But a range of a flattened
tensor is a few rectangular blocks of it, so each rank can write its own and read its own, under the names and shapes of
the whole tensors: those of Megatron's `fully_reshardable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories


@dataclass(frozen=True)
class Block:
    """A rectangle of a tensor whose elements follow each other from `start` on when the tensor is flattened."""

    start: int
    offset: tuple[int, ...]
    size: tuple[int, ...]


def blocks(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Block]:
    """What the elements start..stop of a flattened tensor are in the tensor itself.

    Example: 3..9 of shape (4, 3) are whole rows, Block(3, (1, 0), (2, 3)); 2..7 are Block(2, (0, 2), (1, 1)),
    Block(3, (1, 0), (1, 3)) and Block(6, (2, 0), (1, 1)).
    """
    if start >= stop:
        return
    # Any range of a vector (or of a scalar) is one block.
    if len(shape) <= 1:
        yield Block(start, (start,) * len(shape), (stop - start,) * len(shape))
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    # The range begins and ends inside one row.
    if first > last:
        yield from _of_row(shape, last, start, stop)
        return
    # The end of the row in which the range begins, the whole rows, and the beginning of the row in which it ends.
    yield from _of_row(shape, first - 1, start, first * row)
    if first < last:
        yield Block(first * row, (first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))
    yield from _of_row(shape, last, last * row, stop)


def _of_row(shape: tuple[int, ...], index: int, start: int, stop: int) -> Iterator[Block]:
    begin = index * prod(shape[1:])
    for block in blocks(shape[1:], start - begin, stop - begin):
        yield Block(begin + block.start, (index, *block.offset), (1, *block.size))


def share_of(part: Any, models: Mapping[str, Any]) -> list[ShardedTensor]:
    """Views of what this rank holds of the state of `part`, one of Megatron's chained optimizers: a writer copies
    nothing, and a reader fills the state itself. `models`: the sharded state of each chunk, which says where a
    parameter lies in its whole tensor."""
    described, _ = extract_sharded_tensors_and_factories(dict(models))
    places = {place.data: place for place in nested_values(described)}
    share = []
    for parameter, owned in _owned(part):
        for piece, begin in _pieces(places[parameter]):
            # `owned` counts from the beginning of the flattened parameter, blocks from that of the piece.
            start, stop = max(owned.start - begin, 0), min(owned.end - begin, prod(piece.local_shape))
            for block in blocks(piece.local_shape, start, stop):
                # The state of a rank begins with the first element that it owns.
                first = begin + block.start - owned.start
                for name, held in _state(part, parameter):
                    data = held[first : first + prod(block.size)]
                    share.append(_sharded(name, piece, block, data))
    return share


def _owned(part: Any) -> Iterator[tuple[torch.nn.Parameter, Any]]:
    """Each parameter of which this rank holds something, and the range of it when flattened."""
    for buffer in part.gbuf_ranges:
        for buckets in buffer.values():
            for bucket in buckets:
                for parameter, ranges in bucket["param_map"].items():
                    yield parameter, ranges["param"]


def _pieces(place: ShardedTensor | ShardedTensorFactory) -> Iterator[tuple[ShardedTensor, int]]:
    """The parts in which a parameter is saved (gate and up projections are apart), and where each begins in the
    flattened parameter."""
    if isinstance(place, ShardedTensor):
        yield place, 0
        return
    shape = torch.empty(place.data.shape, device="meta")
    for piece in nested_values(replace(place, data=shape).build()):
        assert piece.data.is_contiguous(), f"{piece.key} is no range of its parameter"
        yield piece, piece.data.storage_offset()


def _state(part: Any, parameter: torch.nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
    group, order = part.model_param_group_index_map[parameter]
    held = part.optimizer.param_groups[group]["params"][order]
    yield "param", held.detach()
    for name in ("exp_avg", "exp_avg_sq"):
        yield name, part.optimizer.state[held][name]


def _sharded(name: str, piece: ShardedTensor, block: Block, data: torch.Tensor) -> ShardedTensor:
    lead = (0,) * (len(piece.global_shape) - len(block.size))  # the experts of a layer are one tensor
    size = (1,) * len(lead) + block.size
    replica: Any = piece.replica_id  # (pipeline, tensor, data parallel)
    return ShardedTensor(
        key=f"optimizer.state.{name}.{piece.key}",
        data=data.view(size),
        dtype=data.dtype,
        local_shape=size,
        global_shape=piece.global_shape,
        global_offset=tuple(map(sum, zip(piece.global_offset, lead + block.offset, strict=True))),
        axis_fragmentations=None,
        replica_id=(*replica[:2], 0),  # no other data-parallel rank has this range
        allow_shape_mismatch=piece.allow_shape_mismatch,
    )
