"""The ranks of a role in two or three dimensions, and a weight's way from a whole to a rank's part and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from roll.configs.strategies.fsdp2 import Fsdp2Settings, num_groups, shard_size

REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


@dataclass(frozen=True)
class RankMesh:
    """Copies of the model x ranks that shard it x ranks that share each matrix; a dimension of size 1 is left out, but
    for the second. Neighbours in the role share matrices."""

    every: DeviceMesh

    @classmethod
    def of(cls, kind: str, settings: Fsdp2Settings, num_ranks: int) -> RankMesh:
        """Creates the mesh on devices of a `kind`. Collective over all ranks."""
        size = shard_size(settings, num_ranks)
        sizes = {
            REPLICATE: num_groups(settings, num_ranks) // size,
            SHARD: size,
            TENSOR: settings.tensor_parallel_size,
        }
        kept = {name: size for name, size in sizes.items() if size > 1 or name == SHARD}
        return cls(init_device_mesh(kind, tuple(kept.values()), mesh_dim_names=tuple(kept)))

    @property
    def data(self) -> DeviceMesh:
        """The ranks with this one's part of every matrix."""
        names = tuple(name for name in self._names if name != TENSOR)
        return self.every[names] if names != self._names else self.every

    @property
    def tensor(self) -> DeviceMesh | None:
        """The ranks that share every matrix with this one; None: it has them alone."""
        return self.every[TENSOR] if TENSOR in self._names else None

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that hold together what this one has a part of."""
        return self.every.get_group(SHARD)

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        return None if self.tensor is None else self.tensor.get_group()

    @property
    def _names(self) -> tuple[str, ...]:
        return self.every.mesh_dim_names or ()


def tensor_placement(shard: DTensor) -> Shard | None:
    """How tensor-parallel ranks divide a weight; None: each has it whole."""
    names = shard.device_mesh.mesh_dim_names or ()
    placement = shard.placements[names.index(TENSOR)] if TENSOR in names else None
    return placement if isinstance(placement, Shard) else None


def own_part(whole: torch.Tensor, shard: DTensor) -> torch.Tensor:
    """What of the whole weight is this rank's: first divided over tensor-parallel ranks, then, along the first
    dimension, over those that shard it. (`distribute_tensor` divides in the order of the mesh, the other one.)"""
    mesh = shard.device_mesh
    if (placement := tensor_placement(shard)) is not None:
        whole = _piece(whole, placement.dim, mesh[TENSOR])
    return _piece(whole, 0, mesh[SHARD])


def _piece(whole: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's chunk of a tensor. Chunks are equally large, but the last may be smaller, or empty."""
    pieces, place = whole.chunk(mesh.size(), dim), mesh.get_local_rank()
    return pieces[place] if place < len(pieces) else whole.narrow(dim, 0, 0)


def whole_weight(shard: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unsharded weight, gradient or moment. A shard in host memory is moved to the device first. Collective."""
    assert isinstance(shard, DTensor)
    mesh, shape = shard.device_mesh, list(shard.shape)
    part = shard.to_local().detach().to(mesh.device_type, dtype)
    names = tuple(name for name in mesh.mesh_dim_names or () if name != TENSOR)
    placement = tensor_placement(shard)
    if placement is not None:
        shape[placement.dim] //= mesh[TENSOR].size()
    data = mesh[names] if names != mesh.mesh_dim_names else mesh
    sharded: list[Placement] = [Shard(0) if name == SHARD else Replicate() for name in names]
    size = torch.Size(shape)
    strides = torch.empty(size, device="meta").stride()
    piece = DTensor.from_local(part, data, sharded, run_check=False, shape=size, stride=strides).full_tensor()
    if placement is None:
        return piece
    return DTensor.from_local(piece, mesh[TENSOR], [placement], run_check=False).full_tensor()
