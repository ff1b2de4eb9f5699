"""One rank of a role that runs on DeepSpeed: process group, loading, collective helpers. Training and scoring share
it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.data_parallel import evened_out
from roll.distributed.strategy.deepspeed.config import EngineConfig
from roll.models.hf import LogProbHead
from roll.models.loading import DTYPES, LoadedModel, load_model
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.types.batch import MicroBatch
from roll.utils.replaced import replaced

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


class DeepSpeedRank:
    """Starts this rank and loads the role's model; knows whether weights are partitioned."""

    def __init__(self, role: WorkerConfig, context: RankContext, config: EngineConfig):
        self.role, self.context, self.config = role, context, config
        self.platform = platform_of(context.device)
        self.engine: DeepSpeedEngine | None = None

    def start(self) -> None:
        """Joins the role's process group. A rank that does not come is an error after backend_timeout, not a hang."""
        self.platform.set_device(self.context.device)
        os.environ.setdefault("DS_ACCELERATOR", self.context.device.type)
        import deepspeed
        import deepspeed.ops

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it warns of choices that are deliberate here
        # DeepSpeed calls torch.distributed by names of last year.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        if self.context.device.type == "cpu":
            # Gloo serves; the op it stands for is C++ that would be compiled for minutes. Setting the table also spares
            # the search for compilers that fills it.
            setattr(deepspeed.ops, "__compatible_ops__", {"deepspeed_shm_comm": False})  # noqa: B010
        bind_stores()
        deepspeed.init_distributed(
            dist_backend=self.platform.communication_backend,
            auto_mpi_discovery=False,
            verbose=False,
            timeout=timedelta(minutes=self.role.backend_timeout),
        )

    def load_model(self, adapts: bool = False) -> LoadedModel:
        """The role's model on this rank's device, with its adapters if it `adapts`; under ZeRO-3 this rank's part of
        it."""
        torch.manual_seed(self.context.seed)
        with self._partitioned_loading():
            model = load_model(self.role.model_args, self.context.head, self.gathered, adapts=adapts)
        if model.adapters is not None:  # peft makes them in fp32, and ZeRO-3 would leave them so
            for parameter in model.module.parameters():
                parameter.data = parameter.data.to(DTYPES[self.role.model_args.dtype])
        if self.config.partitions_weights and self.context.head == "lm":
            from deepspeed.utils import set_z3_leaf_modules

            set_z3_leaf_modules(model.module, [LogProbHead])
        return model

    def initialize(self, model: nn.Module, **parts: Any) -> DeepSpeedEngine:
        """The engine around a model; `parts` are deepspeed.initialize's optimizer and lr_scheduler."""
        import deepspeed

        with _nothing_compiled(), _head_reduced_as_a_whole():
            built = deepspeed.initialize(model=model, config=self.config.json, dist_init_required=False, **parts)
        self.engine = built[0]
        return self.engine

    def gathered(self, parameters: Sequence[nn.Parameter], modify: bool = True) -> Any:
        """A context in which these parameters are whole on every rank; what rank 0 writes then holds for all."""
        if not self.config.partitions_weights:
            return nullcontext()
        from deepspeed import zero

        return zero.GatheredParameters(list(parameters), modifier_rank=0 if modify else None)

    def evened_out(self, micro_batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The micro batches, and where weights are partitioned so many empty ones that all ranks make equally many
        passes."""
        return evened_out(micro_batches, self.context) if self.config.partitions_weights else list(micro_batches)

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.destroy()
            self.engine = None
        self.platform.empty_cache()

    @contextmanager
    def _partitioned_loading(self) -> Iterator[None]:
        """Inside, from_pretrained partitions every parameter as soon as it is created (ZeRO-3 only)."""
        if not self.config.partitions_weights:
            yield
            return
        from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

        alive = HfDeepSpeedConfig(self.config.json)  # transformers keeps only a weak reference
        try:
            yield
        finally:
            del alive
            unset_hf_deepspeed_config()


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """DeepSpeed 0.19 imports Muon to see that our optimizer is another one, and that module compiles its kernels with
    inductor: 7 s of start-up on every rank, for nothing."""

    def decorate(function: Any = None, **options: Any) -> Any:
        return function if function is not None else lambda decorated: decorated

    with replaced(torch, "compile", decorate):
        yield


@contextmanager
def _head_reduced_as_a_whole() -> Iterator[None]:
    """ZeRO-3 reduces the gradients of a leaf module when its backward pass is over. Those of a tied head are not there
    yet, since the embedding's part is still to come: zeros would be reduced in their place, and what comes later be
    lost once that bucket has gone. So the head's are reduced like all others, when they are whole."""
    from deepspeed.runtime.zero import stage3

    is_of_leaf = stage3.z3_leaf_parameter

    def is_reduced_with_its_module(parameter: Any) -> bool:
        return is_of_leaf(parameter) and not isinstance(parameter.ds_z3_leaf_module, LogProbHead)

    with replaced(stage3, "z3_leaf_parameter", is_reduced_with_its_module):
        yield


def full_dimensions(parameter: nn.Parameter) -> int:
    """Dimensions of the whole parameter, also when this rank holds a flat part of it."""
    return len(full_shape(parameter))


def full_shape(parameter: nn.Parameter) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)
