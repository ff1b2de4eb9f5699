"""One rank of a role that runs on FSDP2: process group, mesh, its shards. Training and scoring share it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import Head, ModelArgs
from roll.configs.strategies.fsdp2_settings import Fsdp2Settings
from roll.configs.tables.features import DIVIDED_EXPERTS
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.fsdp2 import sharding
from roll.distributed.strategy.host_copies import HostCopies
from roll.errors import StrategyError
from roll.models.loading import DTYPES, LoadedModel, load_model
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.network import LOOPBACK

# Loads a Hugging Face directory into the shards of all ranks. One rank reads, and none holds more than one whole weight
# at a time.

SOURCE = 0  # the rank that reads


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
    source = load_model(args, head, with_adapters=form.adapters is not None)
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
        parameter.to_local().data.copy_(sharding.local_part(whole, parameter))
    buffers: dict[str, Any] = dict(source.named_buffers()) if source is not None else {}
    for name, buffer in module.named_buffers():
        if source is not None:
            buffer.copy_(buffers[name])
        dist.broadcast(buffer, SOURCE)


class Fsdp2Rank:
    """Starts this rank, loads the role's model, and moves its shards between device and host memory."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.settings = Fsdp2Settings.model_validate(role.strategy_config)
        self.platform = platform_of(context.device)
        self._mesh: sharding.RankMesh | None = None
        self._model: LoadedModel | None = None
        self._copies, self._frozen = HostCopies(), HostCopies(frozen=True)

    @property
    def mesh(self) -> sharding.RankMesh:
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
        self._mesh = sharding.RankMesh.of(self.context.device.type, self.settings, self.context.world_size)
        torch.manual_seed(self.context.seed)

    def load_model(self, kept_in: torch.dtype, with_adapters: bool = False) -> LoadedModel:
        """Return the role's model with this rank's shards in dtype `kept_in`, and its adapters if `with_adapters`. It
        computes in model_args.dtype, in which weights beside adapters are kept. Collective.

        Every buffer comes from the rank that reads: those that no checkpoint holds (the frequencies of rotary
        embeddings) are numbers that the memory happened to contain otherwise."""
        args, head, device = self.role.model_args, self.context.head, self.context.device
        model = load_model(args, head, empty=True, with_adapters=with_adapters)
        for parameter in model.module.parameters():
            is_base = model.adapters is not None and not parameter.requires_grad
            parameter.data = parameter.data.to(DTYPES[args.dtype] if is_base else kept_in)
        source = _source(args, head, model) if self.context.rank == SOURCE else None
        ties = list(_ties(model.module))
        self._cut(model)
        make_room(model.module, torch.device("cpu") if self.settings.offload_policy else device, device)
        for (module, name), others in ties:
            for other, other_name in others:
                setattr(other, other_name, getattr(module, name))
        _fill(model.module, None if source is None else source.module)
        self._model = model
        return model

    def _cut(self, model: LoadedModel) -> None:
        if not self.context.shows_pictures:
            model.freeze_tower()
        if self.mesh.experts is not None:
            import_module(DIVIDED_EXPERTS).divide(model, self.mesh.experts[sharding.EXPERT])
        sharding.shard(model, self.mesh, self.settings, DTYPES[self.role.model_args.dtype])

    def complete_gradients(self) -> None:
        """Completes gradients of divided experts after the backward passes of an update."""
        if self.mesh.experts is not None:
            sharding.average_experts(self.shards().values(), self.settings.ep_size)

    @property
    def module(self) -> nn.Module:
        assert self._model is not None, "load_model() comes first"
        return self._model.module

    @property
    def has_adapters(self) -> bool:
        return self._model is not None and self._model.adapters is not None

    def shards(self) -> dict[str, nn.Parameter]:
        """The parameters by name, none of them gathered."""
        sharding.reshard([module for module in self.module.modules() if isinstance(module, FSDPModule)])
        return dict(self.module.named_parameters())

    @contextmanager
    def unsharded_weights(self) -> Iterator[None]:
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
