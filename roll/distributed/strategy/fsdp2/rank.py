"""One rank of a role that runs on FSDP2: process group, mesh, its shards. Training and scoring share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.fsdp2 import Fsdp2Settings
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.fsdp2.loading import load_shards
from roll.distributed.strategy.fsdp2.meshes import RankMesh
from roll.distributed.strategy.fsdp2.sharding import reshard, shard
from roll.distributed.strategy.fsdp2.tensor_parallel import divide, make_one, norms_of_heads
from roll.distributed.strategy.host_copies import HostCopies
from roll.models.loading import DTYPES, LoadedModel
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.network import LOOPBACK


class Fsdp2Rank:
    """Starts this rank, loads the role's model, and moves its shards between device and host memory."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.settings = Fsdp2Settings.model_validate(role.strategy_config)
        self.platform = platform_of(context.device)
        self._mesh: RankMesh | None = None
        self._model: LoadedModel | None = None
        self._copies, self._frozen = HostCopies(), HostCopies(frozen=True)
        self._norms_of_heads: frozenset[str] = frozenset()

    @property
    def mesh(self) -> RankMesh:
        assert self._mesh is not None, "start() comes first"
        return self._mesh

    def start(self) -> None:
        """Joins the role's process group and divides it. A rank that does not come is an error after backend_timeout,
        not a hang."""
        self.platform.set_device(self.context.device)
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", LOOPBACK)
            bind_stores()
            timeout = timedelta(minutes=self.role.backend_timeout)
            dist.init_process_group(self.platform.communication_backend, timeout=timeout)
        self._mesh = RankMesh.of(self.context.device.type, self.settings, self.context.world_size)
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
            self._cut,
            place,
            self.context.device,
            adapts,
        )
        return self._model

    def _cut(self, model: LoadedModel) -> None:
        if self.mesh.tensor is not None:
            divide(model, self.mesh.tensor)
            self._norms_of_heads = norms_of_heads(model)
        shard(model, self.mesh.data, self.settings, DTYPES[self.role.model_args.dtype])

    def complete_gradients(self) -> None:
        """Completes gradients after the backward passes of an update: those of weights that every rank of a
        tensor-parallel group holds whole."""
        if (group := self.mesh.tensor_group) is not None:
            make_one(self.shards(), self._norms_of_heads, group)

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
            self._bring_back()
        try:
            yield
        finally:
            if self.settings.param_offload:
                self._take()

    def offload_weights(self) -> None:
        if not self.settings.offload_policy:
            self._take()

    def load_weights(self) -> None:
        if not self.settings.param_offload:
            self._bring_back()

    def forget_frozen(self) -> None:
        """A checkpoint may hold other values of what is not trained now."""
        self._frozen.forget()

    def _take(self) -> None:
        self._copies.take(self._local_shards(trained=True))
        self._frozen.take(self._local_shards(trained=False))

    def _bring_back(self) -> None:
        self._copies.bring_back(self._local_shards(trained=True))
        self._frozen.bring_back(self._local_shards(trained=False))

    def _local_shards(self, trained: bool) -> list[torch.Tensor]:
        return [local(shard) for shard in self.shards().values() if shard.requires_grad == trained]

    def stop(self) -> None:
        self._model = None
        self.platform.empty_cache()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight, its gradient or a state of the optimizer."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
