"""Which modules of a model are gathered as one, and torch's fully_shard around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from roll.configs.strategies.fsdp2 import Fsdp2Settings, WrapPolicy
from roll.errors import StrategyError
from roll.models.hf import LogProbHead, ValueHead
from roll.models.loading import LoadedModel

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shard(model: LoadedModel, mesh: DeviceMesh, settings: Fsdp2Settings, computes_in: torch.dtype) -> None:
    """Cuts every parameter along its first dimension. A group is gathered when its module is called; what is in none
    stays gathered from the beginning of a forward pass to the end of its backward pass."""
    parameters = list(model.module.parameters())
    is_mixed = any(parameter.dtype != computes_in for parameter in parameters)
    precision = MixedPrecisionPolicy(
        param_dtype=computes_in if is_mixed else None,
        reduce_dtype=_DTYPES[settings.reduce_dtype] if is_mixed else None,
        cast_forward_inputs=False,  # as in a model that was loaded in this dtype
    )
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": precision, "offload_policy": _offload_policy(mesh, settings)}
    chosen = groups(model, settings.wrap_policy)
    for group in reversed(chosen):  # inner ones first
        is_last = isinstance(group, LogProbHead)  # its backward pass comes at once
        fully_shard(group, reshard_after_forward=settings.reshard_after_forward and not is_last, **options)
    fully_shard(model.module, reshard_after_forward=False, **options)
    if settings.forward_prefetch:
        for group, following in pairwise(chosen):
            assert isinstance(group, FSDPModule) and isinstance(following, FSDPModule)
            group.set_modules_to_forward_prefetch([following])


def _offload_policy(mesh: DeviceMesh, settings: Fsdp2Settings) -> OffloadPolicy:
    if not settings.offload_policy:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")  # there is nothing to pin for


def groups(model: LoadedModel, policy: WrapPolicy) -> list[nn.Module]:
    """The modules that are gathered on their own, outer ones before inner ones: the model's blocks, or those of the
    classes that are named; with them the embedding and the head, unless they are one; and whatever else is large."""
    names = policy.transformer_layer_cls_to_wrap or tuple(model.pretrained._no_split_modules or ())
    reachable = list(_own_modules(model.module))
    if policy.transformer_layer_cls_to_wrap:
        there = {type(module).__name__ for module in reachable}
        if missing := [name for name in names if name not in there]:
            raise StrategyError(
                f"strategy_config.wrap_policy.transformer_layer_cls_to_wrap: the model has no {', '.join(missing)}. It "
                f"has {', '.join(sorted(there))}."
            )
    by_class = [module for module in reachable if type(module).__name__ in names]
    kinds = (nn.Embedding, LogProbHead)
    within = {id(inner) for module in by_class for inner in module.modules()}
    by_class += [module for module in reachable if isinstance(module, kinds) and id(module) not in within]
    chosen = {id(module) for module in by_class}
    if policy.min_num_params:
        chosen |= _large(model.module, chosen, policy.min_num_params)
    holders = Counter(id(parameter) for parameter in _held(model.module))
    return [module for module in reachable if id(module) in chosen and _owns(module, holders)]


def _own_modules(root: nn.Module) -> Iterator[nn.Module]:
    """Modules that are called, in the order of their names. The heads read the weights of their layer themselves."""
    for name, module in root.named_modules():
        outer = (root.get_submodule(name.rpartition(".")[0]) if "." in name else root) if name else None
        is_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if outer is not None and not isinstance(outer, LogProbHead | ValueHead) and not is_container:
            yield module


def _large(root: nn.Module, chosen: set[int], least: int) -> set[int]:
    """Modules with so many parameters, those of chosen and large ones inside not counted."""
    found: set[int] = set()
    reachable = {id(module) for module in _own_modules(root)}

    def rest(module: nn.Module) -> int:
        num = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        num += sum(rest(child) for child in module.children())
        if id(module) in chosen:
            return 0
        if num >= least and id(module) in reachable:
            found.add(id(module))
            return 0
        return num

    rest(root)
    return found


def _held(module: nn.Module) -> Iterator[nn.Parameter]:
    """A tied weight as often as it is held."""
    for child in module.modules():
        yield from child.parameters(recurse=False)


def _owns(module: nn.Module, holders: Counter[int]) -> bool:
    """True where nothing outside holds one of its weights: a tied one must be gathered with all that use it."""
    inside = Counter(id(parameter) for parameter in _held(module))
    return bool(inside) and all(holders[key] == count for key, count in inside.items())


def reshard(modules: Sequence[FSDPModule]) -> None:
    """Ends what a forward pass without a backward pass left gathered: the weights are this rank's shards again."""
    for module in modules:
        module.reshard()
