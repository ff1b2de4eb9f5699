"""Loads a Hugging Face directory into the shards of all ranks. One rank reads, and none holds more than one whole
weight at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.roles import Head
from roll.distributed.strategy.fsdp2.meshes import own_part
from roll.errors import StrategyError
from roll.models.loading import DTYPES, LoadedModel, load_model

SOURCE = 0  # the rank that reads


def load_shards(
    args: ModelArgs,
    head: Head,
    rank: int,
    kept_in: torch.dtype,
    cut: Callable[[LoadedModel], None],
    place: torch.device,
    device: torch.device,
    adapts: bool = False,
) -> LoadedModel:
    """The model with this rank's shards in it, in dtype `kept_in`. `cut` shards the empty form of the model; `place` is
    where the shards lie, `device` the one that computes. `adapts`: with the adapters that `args` ask for; the weights
    beside them, which no optimizer touches, are kept in model_args.dtype. Collective.

    Every buffer comes from the rank that reads: those that no checkpoint holds (the frequencies of rotary embeddings)
    are numbers that the memory happened to contain otherwise.
    """
    model = load_model(args, head, empty=True, adapts=adapts)
    for parameter in model.module.parameters():
        is_base = model.adapters is not None and not parameter.requires_grad
        parameter.data = parameter.data.to(DTYPES[args.dtype] if is_base else kept_in)
    source = _source(args, head, model) if rank == SOURCE else None
    ties = list(_ties(model.module))
    cut(model)
    make_room(model.module, place, device)
    for (module, name), others in ties:
        for other, other_name in others:
            setattr(other, other_name, getattr(module, name))
    _fill(model.module, None if source is None else source.module)
    return model


def make_room(module: nn.Module, place: torch.device, device: torch.device) -> None:
    """Memory with no values yet for an empty module: parameters at `place`, buffers on the `device` that computes.

    FSDP2 moves shards from host memory to the device when a block is called, and never moves buffers; NCCL takes no
    tensor in host memory.
    """
    module.to_empty(device=place)
    if place == device:
        return
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            part._buffers[name] = torch.empty_like(buffer, device=device)


def _source(args: ModelArgs, head: Head, form: LoadedModel) -> LoadedModel:
    """The weights that the form wants. StrategyError if the checkpoint holds a weight of its own where config.json ties
    two: transformers, which reads config.json alone for the form, leaves them apart when it loads them."""
    source = load_model(args, head, adapts=form.adapters is not None)
    if apart := sorted({*source.hf_names.values()} - {*form.hf_names.values()}):
        raise StrategyError(
            f"{args.model_name_or_path}: tie_word_embeddings is true in config.json, but the checkpoint has another "
            f"{', '.join(apart)}. Set it to false there, or in model_args.model_config_kwargs."
        )
    return source


Holder = tuple[nn.Module, str]


def _ties(root: nn.Module) -> Iterator[tuple[Holder, list[Holder]]]:
    """The first holder and the others, for every weight that several modules share."""
    holders: dict[int, list[Holder]] = {}
    for module in root.modules():
        for name, parameter in module.named_parameters(recurse=False):
            holders.setdefault(id(parameter), []).append((module, name))
    yield from ((first, others) for first, *others in holders.values() if others)


def _fill(module: nn.Module, source: nn.Module | None) -> None:
    """Weights and buffers of rank `SOURCE`, which alone has a `source`, one after the other."""
    weights = dict(source.named_parameters()) if source is not None else {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor)
        device = parameter.device_mesh.device_type
        if source is None:
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        else:
            whole = weights.pop(name).detach().to(device, parameter.dtype).contiguous()
        dist.broadcast(whole, SOURCE)
        parameter.to_local().data.copy_(own_part(whole, parameter))
    buffers: dict[str, Any] = dict(source.named_buffers()) if source is not None else {}
    for name, buffer in module.named_buffers():
        if source is not None:
            buffer.copy_(buffers[name])
        dist.broadcast(buffer, SOURCE)
