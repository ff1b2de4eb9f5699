"""Activations that wait in host memory from the forward pass to the backward pass, as `torch.autograd.graph.
save_on_cpu` keeps them; weights stay where their engine has them, and what is saved several times is moved once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from roll.errors import StrategyError
from roll.models.head_scores import allow_many_forms
from roll.models.hf import TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.models.sequences.attention import state_layers
from roll.models.sequences.packed_attention import PACKED_ATTENTION, packed_attention
from roll.platforms.table import platform_of

LEAST_ELEMENTS = 1024  # a smaller tensor costs more to move than it frees


@dataclass(frozen=True)
class _OfWeight:
    """A view of a weight that may be released and gathered again before it is asked for."""

    weight: nn.Parameter
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt


@dataclass(frozen=True)
class _OnHost:
    copy: torch.Tensor
    device: torch.device


_Packed = torch.Tensor | _OfWeight | _OnHost


class ActivationOffload:
    """Tensors that one module's forward passes save, moved to host memory. Weights are known by their memory, which
    engines fill anew for every pass (FSDP2, ZeRO-3): it is looked at when the modules that hold them are called. A
    reference to each memory keeps its address from being another tensor's while it is looked for."""

    def __init__(self, module: nn.Module):
        self._weights: dict[int, tuple[StorageWeakRef, nn.Parameter]] = {}
        self._moved: dict[tuple[object, ...], tuple[StorageWeakRef, _OnHost]] = {}
        for child in module.modules():
            child.register_forward_pre_hook(lambda called, _: self._look_at(called))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Context for a forward pass that a backward pass follows."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            try:
                yield
            finally:
                self._weights.clear()
                self._moved.clear()

    def _look_at(self, module: nn.Module) -> None:
        """Heads read the weights of the layers inside them, hence all below the module."""
        for parameter in module.parameters():
            storage = _plain(parameter).untyped_storage()
            self._weights[storage._cdata] = StorageWeakRef(storage), parameter

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        storage = tensor.untyped_storage()
        if weight := self._weights.get(storage._cdata):
            return _OfWeight(weight[1], tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.numel() < LEAST_ELEMENTS or not tensor.is_floating_point():
            return tensor
        key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if key not in self._moved:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=platform_of(tensor.device).is_accelerator)
            copy.copy_(tensor, non_blocking=True)
            self._moved[key] = StorageWeakRef(storage), _OnHost(copy, tensor.device)
        return self._moved[key][1]

    def _unpack(self, packed: _Packed) -> torch.Tensor:
        if isinstance(packed, _OnHost):
            return packed.copy.to(packed.device, non_blocking=True)
        if isinstance(packed, _OfWeight):
            return _plain(packed.weight).as_strided(packed.shape, packed.stride, packed.offset)
        return packed


def _plain(weight: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a DTensor, or the tensor itself."""
    detached = weight.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


# A Hugging Face model by torch.compile: its blocks, which are many of one form, and the arithmetic of its head.


_LENGTHS = "L['kwargs']['max_length_q'],L['kwargs']['max_length_k'],L['max_length_q'],L['max_length_k']"  # of a pack


def compile_model(model: LoadedModel, keeps_products: bool = False, follows_attention: bool = False) -> None:
    """Compiles the model's blocks, once for all lengths of rows. Only a block's forward function is compiled, so that
    the hooks of FSDP2 and checkpointing stay as they are. Layers with states, which go through rows in steps, stay as
    they are.

    - `keeps_products`: what is computed again in the backward pass is the compiler's choice, which keeps the results of
      matrix products and joins the rest with kernels of the backward pass. Whole blocks are not computed again then.
    - `follows_attention`: packed rows are one call of a kernel, which is a part of the block's graph. Otherwise what
      runs depends on the rows' lengths, and the graph ends before it.
    """
    names = set(model.pretrained._no_split_modules or ())
    blocks = [m for m in model.pretrained.modules() if names & {kind.__name__ for kind in type(m).__mro__}]
    if not blocks:
        raise StrategyError(
            f"use_torch_compile: transformers does not say which modules of {type(model.pretrained).__name__} are its "
            "blocks. Set it to false"
        )
    if keeps_products:
        model.pretrained.gradient_checkpointing_disable()
        # Else it keeps factors of products as well: outputs of norms and of activation functions.
        partition: Any = import_module("torch._functorch.config")
        partition.ban_recompute_materialized_backward = False
    allow_many_forms()
    compile_it: Any = torch.compile
    for block in blocks:
        block.forward = _of_any_length(compile_it(block.forward))
    attention = packed_attention if follows_attention else torch.compiler.disable(packed_attention)
    AttentionInterface.register(PACKED_ATTENTION, attention)
    for layer in state_layers(model.pretrained):
        layer.forward = torch.compiler.disable(layer.forward)
    if isinstance(model.module, TokenLogProbModel):
        model.module.head.compiled = True


def _of_any_length(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Says which sizes vary, before the first call: all of the inputs but the features of a token. `dynamic=True` would
    make integers of FSDP2's modules vary as well, such as the size of a head, and divide by them for every number."""
    lengths: Any = torch.compiler.config
    lengths.dynamic_sources = _LENGTHS

    def forward(*args: Any, **kwargs: Any) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if torch.is_tensor(tensor):
                has_features = tensor.is_floating_point() and tensor.dim() == 3
                torch._dynamo.maybe_mark_dynamic(tensor, list(range(tensor.dim() - has_features)))
        return compiled(*args, **kwargs)

    return forward
