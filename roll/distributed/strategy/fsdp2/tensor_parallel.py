"""Matrices of a model's blocks divided over neighbouring ranks (Shoeybi et al., "Megatron-LM", arXiv 1909.08053,
section 3), as transformers' plan for the model says, by torch's parallelize_module. Embedding, head and norms are
whole on each of these ranks, which all compute the same from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from roll.configs.strategies.tensor_parallel import PLANNED, refused_model
from roll.distributed.strategy.fsdp2.meshes import tensor_placement
from roll.errors import StrategyError
from roll.models.loading import LoadedModel

_BLOCKS = "layers.*."
_OF_HEADS = "replicated_with_grad_allreduce"


def _style(word: str) -> ParallelStyle | None:
    """Parallel style for a word of transformers' plans; None if each rank holds the whole module."""
    styles: Mapping[str, ParallelStyle] = {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    }
    return styles.get(word)


def divide(model: LoadedModel, mesh: DeviceMesh) -> None:
    """Divides the matrices of the model's blocks over the ranks of the mesh. The model is empty: nothing is sent.
    StrategyError for one whose type is none of `PLANNED`."""
    kind = model.pretrained.config.model_type
    if kind not in PLANNED:
        raise StrategyError(f"strategy_config.tensor_parallel_size: {refused_model(kind)}")
    plan = {name: style for name, word in _of_blocks(model).items() if (style := _style(word)) is not None}
    parallelize_module(model.pretrained, mesh, plan, src_data_rank=None)


def _of_blocks(model: LoadedModel) -> dict[str, str]:
    return {name: word for name, word in model.pretrained.tp_plan.items() if _BLOCKS in name}


def norms_of_heads(model: LoadedModel) -> frozenset[str]:
    """Names of the parameters that every rank has whole, and applies to its own heads."""
    patterns = [name for name, word in _of_blocks(model).items() if word == _OF_HEADS]
    found = {own for own, name in model.hf_names.items() for p in patterns if fnmatchcase(name, f"{p}.*")}
    return frozenset(found)


def make_one(shards: Mapping[str, nn.Parameter], summed: frozenset[str], group: dist.ProcessGroup) -> None:
    """Gradients of what tensor-parallel ranks have whole: equal on all of them, up to the last bit, in which they must
    not drift apart, so they get the mean; of norms of heads the sum, since each has seen its heads alone."""
    for name, device, gradient in _whole_gradients(shards):
        there = gradient.to(device)  # with offload_policy it is in host memory, which NCCL does not reach
        dist.all_reduce(there, group=group)
        if name not in summed:
            there.div_(group.size())
        if there is not gradient:
            gradient.copy_(there)


def _whole_gradients(shards: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(name, kind of the device that computes, this rank's part)."""
    for name, shard in shards.items():
        assert isinstance(shard, DTensor)
        if isinstance(shard.grad, DTensor) and tensor_placement(shard) is None:
            yield name, shard.device_mesh.device_type, shard.grad.to_local()
