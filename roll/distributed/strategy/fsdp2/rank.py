"""One rank of a role that runs on FSDP2: process group, mesh, its shards. Training and scoring share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from roll.configs.cluster import WorkerConfig
from roll.configs.strategies.fsdp2 import Fsdp2Settings, shard_size
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.fsdp2.loading import load_shards
from roll.distributed.strategy.fsdp2.sharding import reshard, shard
from roll.distributed.strategy.host_copies import HostCopies
from roll.models.loading import DTYPES, LoadedModel
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.network import LOOPBACK

SHARD, REPLICATE = "shard", "replicate"


class Fsdp2Rank:
    """Starts this rank, loads the role's model, and moves its shards between device and host memory."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.settings = Fsdp2Settings.model_validate(role.strategy_config)
        self.platform = platform_of(context.device)
        self._mesh: DeviceMesh | None = None
        self._model: LoadedModel | None = None
        self._copies = HostCopies()

    @property
    def mesh(self) -> DeviceMesh:
        assert self._mesh is not None, "start() comes first"
        return self._mesh

    @property
    def num_replicas(self) -> int:
        return self.context.world_size // shard_size(self.settings, self.context.world_size)

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that hold the model together."""
        return self.mesh.get_group(SHARD)

    def start(self) -> None:
        """Joins the role's process group and divides it. A rank that does not come is an error after backend_timeout,
        not a hang."""
        self.platform.set_device(self.context.device)
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", LOOPBACK)
            bind_stores()
            timeout = timedelta(minutes=self.role.backend_timeout)
            dist.init_process_group(self.platform.communication_backend, timeout=timeout)
        kind, size = self.context.device.type, shard_size(self.settings, self.context.world_size)
        if self.num_replicas == 1:
            self._mesh = init_device_mesh(kind, (size,), mesh_dim_names=(SHARD,))
        else:
            self._mesh = init_device_mesh(kind, (self.num_replicas, size), mesh_dim_names=(REPLICATE, SHARD))
        torch.manual_seed(self.context.seed)

    def load_model(self, kept_in: torch.dtype, adapts: bool = False) -> LoadedModel:
        """The role's model, with its adapters if it `adapts`, this rank's shards of it in dtype `kept_in`; it computes
        in model_args.dtype, in which weights beside adapters are kept."""
        args = self.role.model_args
        place = torch.device("cpu") if self.settings.offload_policy else self.context.device
        self._model = load_shards(
            args,
            self.context.head,
            self.context.rank,
            kept_in,
            lambda model: shard(model, self.mesh, self.settings, DTYPES[args.dtype]),
            place,
            adapts,
        )
        return self._model

    @property
    def module(self) -> nn.Module:
        assert self._model is not None, "load_model() comes first"
        return self._model.module

    @property
    def adapts(self) -> bool:
        return self._model is not None and self._model.adapters is not None

    def shards(self) -> dict[str, nn.Parameter]:
        """The parameters by name, none of them gathered."""
        reshard([module for module in self.module.modules() if isinstance(module, FSDPModule)])
        return dict(self.module.named_parameters())

    @contextmanager
    def weights_at_work(self) -> Iterator[None]:
        """Inside, the shards are on the device; afterwards where `param_offload` wants them."""
        if self.settings.param_offload:
            self._copies.bring_back(self._local_shards())
        try:
            yield
        finally:
            if self.settings.param_offload:
                self._copies.take(self._local_shards())

    def offload_weights(self) -> None:
        if not self.settings.offload_policy:
            self._copies.take(self._local_shards())

    def load_weights(self) -> None:
        if not self.settings.param_offload:
            self._copies.bring_back(self._local_shards())

    def _local_shards(self) -> list[torch.Tensor]:
        return [local(shard) for shard in self.shards().values()]

    def stop(self) -> None:
        self._model = None
        self.platform.empty_cache()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight, its gradient or a state of the optimizer."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def whole_weight(shard: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A shard that lies in host memory travels from the device."""
    assert isinstance(shard, DTensor)
    part = shard.to_local().detach().to(shard.device_mesh.device_type, dtype)
    placed = DTensor.from_local(
        part, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )
    return placed.full_tensor()
