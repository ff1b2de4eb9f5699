"""Modules of a model that are gathered as one, and torch's fully_shard around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from roll.configs.strategies import fsdp2_settings
from roll.configs.strategies.fsdp2_settings import Fsdp2Settings
from roll.errors import StrategyError
from roll.models.hf import LogProbHead, ValueHead
from roll.models.loading import LoadedModel

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shard(model: LoadedModel, ranks: RankMesh, settings: Fsdp2Settings, computes_in: torch.dtype) -> None:
    """Cuts every parameter along its first dimension. A group is gathered when its module is called; what is in none
    stays gathered from the beginning of a forward pass to the end of its backward pass. Divided experts are groups of
    their own, over the ranks with the same experts."""
    parameters = list(model.module.parameters())
    is_mixed = any(parameter.dtype != computes_in for parameter in parameters)
    precision = MixedPrecisionPolicy(
        param_dtype=computes_in if is_mixed else None,
        reduce_dtype=_DTYPES[settings.reduce_dtype] if is_mixed else None,
        cast_forward_inputs=False,  # as in a model that was loaded in this dtype
    )
    mesh = ranks.data
    options: dict[str, Any] = {"mp_policy": precision, "offload_policy": _offload_policy(mesh, settings)}
    experts = [module for module in model.module.modules() if _is_divided(module)]
    chosen = groups(model, settings.wrap_policy, experts)
    for group in reversed(chosen):  # inner ones first
        is_last = isinstance(group, LogProbHead)  # its backward pass comes at once
        over = ranks.expert_data if any(group is each for each in experts) else mesh
        fully_shard(group, mesh=over, reshard_after_forward=settings.reshard_after_forward and not is_last, **options)
    fully_shard(model.module, mesh=mesh, reshard_after_forward=False, **options)
    if settings.forward_prefetch:
        for group, following in pairwise(chosen):
            assert isinstance(group, FSDPModule) and isinstance(following, FSDPModule)
            group.set_modules_to_forward_prefetch([following])


def _is_divided(module: nn.Module) -> bool:
    """True of experts that `roll.features.experts.divided` divided over ranks, before anything else is sharded."""
    return any(isinstance(weight, DTensor) for weight in module.parameters(recurse=False))


def _offload_policy(mesh: DeviceMesh, settings: Fsdp2Settings) -> OffloadPolicy:
    if not settings.offload_policy:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")  # there is nothing to pin for


_READ_INSIDE = ("Glm4vMoeVisionEmbeddings", "Glm4vVisionEmbeddings")
"""Classes that read the weight of an embedding themselves, and do not call it."""


def groups(model: LoadedModel, policy: fsdp2_settings.WrapPolicy, experts: Sequence[nn.Module] = ()) -> list[nn.Module]:
    """The modules that are gathered on their own, outer ones before inner ones: the model's blocks, or those of the
    classes that are named; with them the embedding and the head, unless they are one; divided `experts`; and whatever
    else is large."""
    names = policy.transformer_layer_cls_to_wrap or tuple(model.pretrained._no_split_modules or ())
    reachable = list(_direct_modules(model.module))
    if policy.transformer_layer_cls_to_wrap:
        there = {type(module).__name__ for module in reachable}
        if missing := [name for name in names if name not in there]:
            raise StrategyError(
                f"strategy_config.wrap_policy.transformer_layer_cls_to_wrap: the model has no {', '.join(missing)}. It "
                f"has {', '.join(sorted(there))}."
            )
    by_class = [module for module in reachable if type(module).__name__ in (*names, *_READ_INSIDE)]
    kinds = (nn.Embedding, LogProbHead)
    within = {id(inner) for module in by_class for inner in module.modules()}
    by_class += [module for module in reachable if isinstance(module, kinds) and id(module) not in within]
    chosen = {id(module) for module in (*by_class, *experts)}
    if policy.min_num_params:
        chosen |= _large(model.module, chosen, policy.min_num_params)
    holders = Counter(id(parameter) for parameter in _held(model.module))
    return [module for module in reachable if id(module) in chosen and _owns(module, holders)]


def _direct_modules(root: nn.Module) -> Iterator[nn.Module]:
    """Modules that are called, in the order of their names. The heads read the weights of their layer themselves."""
    for name, module in root.named_modules():
        outer = (root.get_submodule(name.rpartition(".")[0]) if "." in name else root) if name else None
        is_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if outer is not None and not isinstance(outer, LogProbHead | ValueHead) and not is_container:
            yield module


def _large(root: nn.Module, chosen: set[int], least: int) -> set[int]:
    """Modules with so many parameters, those of chosen and large ones inside not counted."""
    ids: set[int] = set()
    reachable = {id(module) for module in _direct_modules(root)}

    def rest(module: nn.Module) -> int:
        num = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        num += sum(rest(child) for child in module.children())
        if id(module) in chosen:
            return 0
        if num >= least and id(module) in reachable:
            ids.add(id(module))
            return 0
        return num

    rest(root)
    return ids


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


# The ranks of a role in one or two dimensions, and a weight's way from a whole to a rank's part and back.

REPLICATE, SHARD, EXPERT = "replicate", "shard", "expert"


@dataclass(frozen=True)
class RankMesh:
    """`data`: copies of the model x ranks that shard it; the first is left out if there is one copy. `experts`: the
    same ranks as they hold experts, if those are divided: copies x ranks that shard the same ones x ranks with
    others."""

    data: DeviceMesh
    experts: DeviceMesh | None = None

    @classmethod
    def of(cls, kind: str, settings: Fsdp2Settings, num_ranks: int) -> RankMesh:
        """Creates the mesh on devices of a `kind`. Collective over all ranks."""
        size = settings.shard_size(num_ranks)
        copies, apart = num_ranks // size, settings.ep_size
        data = _mesh(kind, {REPLICATE: copies, SHARD: size})
        if apart == 1:
            return cls(data)
        return cls(data, _mesh(kind, {REPLICATE: copies, SHARD: size // apart, EXPERT: apart}))

    @property
    def expert_data(self) -> DeviceMesh:
        """The ranks with this one's experts."""
        assert self.experts is not None
        names = self.experts.mesh_dim_names or ()
        return self.experts[tuple(name for name in names if name != EXPERT)]

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that hold together what this one has a part of."""
        return self.data.get_group(SHARD)


def _mesh(kind: str, sizes: Mapping[str, int]) -> DeviceMesh:
    dims = {name: size for name, size in sizes.items() if size > 1 or name == SHARD}
    return init_device_mesh(kind, tuple(dims.values()), mesh_dim_names=tuple(dims))


def _expert_ranks(shard: DTensor) -> DeviceMesh | None:
    """The ranks that divide the experts of a layer, whole ones each; None: each rank has the weight whole before it is
    sharded."""
    mesh = shard.device_mesh
    return mesh[EXPERT] if EXPERT in (mesh.mesh_dim_names or ()) else None


def local_part(whole: torch.Tensor, shard: DTensor) -> torch.Tensor:
    """Return this rank's part of the whole weight: first divided over ranks that share experts, then over those that
    shard it. (`distribute_tensor` divides in the order of the mesh, the other one.)"""
    if (ranks := _expert_ranks(shard)) is not None:
        whole = _piece(whole, ranks)
    return _piece(whole, shard.device_mesh[SHARD])


def _piece(whole: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's chunk of the rows. Chunks are equally large, but the last may be smaller, or empty."""
    pieces, place = whole.chunk(mesh.size()), mesh.get_local_rank()
    return pieces[place] if place < len(pieces) else whole.narrow(0, 0, 0)


def whole_weight(shard: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unsharded weight, gradient or moment. A shard in host memory is moved to the device first. Collective."""
    assert isinstance(shard, DTensor)
    mesh, experts = shard.device_mesh, _expert_ranks(shard)
    part = shard.to_local().detach().to(mesh.device_type, dtype)
    num_rows = shard.shape[0] if experts is None else shard.shape[0] // experts.size()
    piece = _gathered(part, num_rows, mesh.get_group(SHARD))
    if experts is None:
        return piece
    return DTensor.from_local(piece, experts, [Shard(0)], run_check=False).full_tensor()


def _gathered(part: torch.Tensor, num_rows: int, ranks: dist.ProcessGroup) -> torch.Tensor:
    """The rows of all ranks, of which `part` has this one's chunk (`_piece`); the part itself where a rank is alone."""
    if (size := ranks.size()) == 1:
        return part
    most = -(-num_rows // size)
    filled = part if len(part) == most else torch.cat([part, part.new_empty(most - len(part), *part.shape[1:])])
    whole = part.new_empty(size * most, *part.shape[1:])
    dist.all_gather_single(whole, filled.contiguous(), group=ranks)
    return whole[:num_rows]


def average_experts(shards: Iterable[nn.Parameter], size: int) -> None:
    """Brings gradients of divided experts to the scale of the others: they are sums over the `size` ranks whose tokens
    came, and means over the ranks with the same experts, where the others are means over all."""
    for shard in shards:
        if isinstance(shard.grad, DTensor) and _expert_ranks(shard.grad) is not None:
            shard.grad.to_local().div_(size)
