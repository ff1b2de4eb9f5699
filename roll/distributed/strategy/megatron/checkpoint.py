"""The state of a trainer in Megatron's dist_checkpointing: written under some parallel sizes, read under any others.

Workarounds for megatron-core 0.16 without transformer-engine or apex are marked; none of them is about the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer import DistributedOptimizer
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from roll.distributed.strategy.data_parallel import random_state, random_state_file, set_random_state
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.features.lora.megatron import CHILD
from roll.models.megatron.dist_files import layout_metadata, read, write
from roll.models.megatron.hf_files import CHECKPOINT_FOLDER

if TYPE_CHECKING:
    from roll.distributed.strategy.megatron.optimizer import Updater
    from roll.features.lora.megatron import MegatronAdapters

# A rank's share of the distributed optimizer's state, as blocks of whole tensors.
#
# A rank holds a range of each flattened parameter's fp32 copy and moments. Megatron's own format for any layout gathers
# whole buffers on one rank before it writes, and gives every rank whole tensors when it reads. But a range of a
# flattened tensor is a few rectangular blocks of it, so each rank can write its own and read its own, under the names
# and shapes of the whole tensors: those of Megatron's `fully_reshardable`.


@dataclass(frozen=True)
class Block:
    """A rectangle of a tensor whose elements follow each other from `start` on when the tensor is flattened."""

    start: int
    offset: tuple[int, ...]
    size: tuple[int, ...]


def blocks(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Block]:
    """Yield the blocks of a tensor that the elements start..stop of the flattened tensor make up.

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


def shard_of(part: Any, models: Mapping[str, Any]) -> list[ShardedTensor]:
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


def save(
    directory: Path,
    chunks: Sequence[Any],
    updater: Updater,
    adapters: MegatronAdapters | None,
    fixed: Mapping[str, object],
) -> None:
    """Weights (those that are trained, beside adapters), optimizer, schedule and random state. `fixed` is what a loader
    must agree with, whatever its layout. Collective; `directory` is seen by all ranks."""
    target = directory / CHECKPOINT_FOLDER
    if dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    metadata = layout_metadata()
    _prime(updater.optimizer)
    write(_sharded_state(chunks, updater, adapters, metadata, is_loading=False), target, metadata)
    of_tracker = {"tracker": dict(_tracker().get_states())}
    torch.save(random_state() | of_tracker, random_state_file(directory, dist.get_rank()))
    if dist.get_rank() == 0:
        SavedFacts(fixed, _layout()).write(directory)
    dist.barrier()


def load(
    directory: Path,
    chunks: Sequence[Any],
    updater: Updater,
    adapters: MegatronAdapters | None,
    fixed: Mapping[str, object],
) -> None:
    """Restores what `save` wrote, also under other parallel sizes; the optimizer's settings stay the updater's. Random
    states come back under the same sizes only; under others lora_dropout, which alone draws from them, begins anew.
    Collective. StrategyError, with nothing loaded, if it was written under other `fixed`."""
    source = directory / CHECKPOINT_FOLDER
    saved = SavedFacts.agreeing(directory, fixed)
    _prime(updater.optimizer)
    state = _sharded_state(chunks, updater, adapters, layout_metadata(), is_loading=True)
    loaded = read(state, source)
    for key, chunk in _named(chunks):
        chunk.load_state_dict(loaded[key], strict=adapters is None)
    updater.updates_done = int(loaded["updates_done"])
    if _is_shared(updater.optimizer):
        _set_steps(updater.optimizer, updater.updates_done)  # the rest was read into its place
    else:
        if updater.updates_done == 0 and all(_counts_per_parameter(part) for part in _parts(updater.optimizer)):
            _add_steps_of_zero(loaded["optimizer"])
        updater.optimizer.load_state_dict(loaded["optimizer"])
    _separate_steps(updater.optimizer)
    updater.apply_settings()
    if saved.layout == _layout():
        state = torch.load(random_state_file(directory, dist.get_rank()), weights_only=True)
        set_random_state(state)
        _tracker().set_states(state["tracker"])


def _sharded_state(
    chunks: Sequence[Any],
    updater: Updater,
    adapters: MegatronAdapters | None,
    metadata: dict[str, Any],
    is_loading: bool,
) -> dict[str, Any]:
    models = {key: chunk.sharded_state_dict(metadata=metadata) for key, chunk in _named(chunks)}
    if adapters is not None:
        models = {key: _trained(models[key], chunk) | adapters.sharded_state(chunk) for key, chunk in _named(chunks)}
    state = {**models, "updates_done": updater.updates_done}
    if _is_shared(updater.optimizer):
        return state | {"share": [shard_of(part, models) for part in _parts(updater.optimizer)]}
    of_optimizer = updater.optimizer.sharded_state_dict(
        models if len(models) > 1 else models["model"], is_loading=is_loading, metadata=metadata
    )
    return state | {"optimizer": of_optimizer}


def _trained(described: Mapping[str, Any], chunk: Any) -> dict[str, Any]:
    """Return the parameters that are trained in full beside adapters, which are described by their own names."""
    trained = {id(parameter) for parameter in chunk.parameters() if parameter.requires_grad}
    places = {name: place for name, place in described.items() if id(getattr(place, "data", None)) in trained}
    return {name: place for name, place in places.items() if f".{CHILD}." not in name}


def _is_shared(optimizer: Any) -> bool:
    return any(isinstance(part, DistributedOptimizer) for part in optimizer.chained_optimizers)


def _set_steps(optimizer: Any, updates_done: int) -> None:
    """Adam's count of steps, which is that of updates. Megatron knows whether its optimizer keeps it per group or per
    parameter."""
    for part in _parts(optimizer):
        state = part.state_dict()
        for group in state["optimizer"]["param_groups"]:
            group["step"] = updates_done
        part.load_state_dict(state)


def _named(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The bare modules under the names Megatron's own checkpoints use."""
    for i, chunk in enumerate(chunks):
        while isinstance(getattr(chunk, "module", None), torch.nn.Module):
            chunk = chunk.module
        yield ("model" if len(chunks) == 1 else f"model{i}"), chunk


def _layout() -> dict[str, object]:
    return {
        "world_size": dist.get_world_size(),
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
        "context": parallel_state.get_context_parallel_world_size(),
        "expert": parallel_state.get_expert_model_parallel_world_size(),
    }


def _parts(optimizer: Any) -> Iterator[Any]:
    """Megatron chains one optimizer for dense parameters and one for experts; a rank may have nothing in one of
    them."""
    yield from (part for part in optimizer.chained_optimizers if part.optimizer is not None)


def _prime(optimizer: Any) -> None:
    """AdamW makes its state in the first step; the distributed optimizer asks for it before it loads. torch's counts
    steps per parameter; transformer-engine's, which Megatron takes wherever that package is installed, counts them per
    group and knows no such state."""
    for part in _parts(optimizer):
        counts = _counts_per_parameter(part)
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                if not part.optimizer.state[parameter]:
                    moments = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
                    part.optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments} if counts else moments


def _counts_per_parameter(part: Any) -> bool:
    return isinstance(part.optimizer, torch.optim.Adam)  # AdamW is one


def _add_steps_of_zero(state: dict[Any, Any]) -> None:
    """Megatron leaves a count of 0 out of its file, but not out of what it gives to torch."""
    if "param_groups" in state:
        state["state"]["common_step"] = torch.tensor(0.0)
        return
    for value in state.values():
        if isinstance(value, dict):
            _add_steps_of_zero(value)


def _separate_steps(optimizer: Any) -> None:
    """Gives every parameter its own step tensor. After loading they share one, and every parameter's update would
    increment it."""
    for part in _parts(optimizer):
        for state in part.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()


def _tracker() -> Any:
    """Return the object with Megatron's random states, one for each kind of parallelism."""
    return get_cuda_rng_tracker()
