"""One rank of a role that runs on DeepSpeed: process group, loading, collective helpers. Training and scoring share
it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind
from torch import nn

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.deepspeed import DeepSpeedFacts, complete_deepspeed_config, zero_stage
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.data_parallel import evened_out
from roll.distributed.strategy.host_copies import HostCopies
from roll.errors import StrategyError
from roll.models.experts.ranks import experts_of
from roll.models.hf import LogProbHead
from roll.models.loading import DTYPES, LoadedModel, load_model
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.types.batch import MicroBatch
from roll.utils.imports import replaced

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

# The JSON a DeepSpeed engine is built from: the role's strategy_config, completed, with the traps on our way removed.

PARTITIONED_WEIGHTS = 3  # the ZeRO stage from which parameters are no longer whole on a rank


@dataclass(frozen=True)
class EngineConfig:
    """`json` is what deepspeed.initialize takes. `own_clip` is the norm to which the caller must clip (0: it need
    not)."""

    json: dict[str, Any]
    stage: int
    own_clip: float = 0.0

    @property
    def partitions_weights(self) -> bool:
        return self.stage == PARTITIONED_WEIGHTS

    def keeps_on_host(self, section: Literal["offload_optimizer", "offload_param"]) -> bool:
        settings = self.json["zero_optimization"].get(section)
        return bool(settings) and settings.get("device", "none") != "none"


def training_config(role: WorkerConfig, plan: TrainPlan) -> EngineConfig:
    """The engine of a role that learns.

    - Clipping is always written out, because DeepSpeed clips at 1.0 when nothing is said. fp32 without ZeRO is clipped
      by the caller: DeepSpeed computes no norm there, and the metric needs one anyway.
    - Ranks sum gradients of bf16 in fp32, as the other trainers do: a sum over 64 ranks in bf16 is off by 1%.
    - bf16 accumulates gradients in fp32 with stages 2 and 3: the sum over many micro batches has more digits than bf16.
      Stages 0 and 1 add in bf16, as DeepSpeed does (stage 1 could, with an optimizer that cannot move its states off
      the device).
    """
    facts = DeepSpeedFacts(
        dtype=role.model_args.dtype,
        micro_batch_size=plan.micro_batch_size,
        accumulation=plan.accumulation,
        dp_size=plan.dp_size * role.model_args.ulysses_size,  # DeepSpeed counts every rank
        max_grad_norm=plan.max_grad_norm,
    )
    json = complete_deepspeed_config(role.strategy_config, facts)
    stage = zero_stage(json)
    own_clip = 0.0
    if stage == 0 and facts.dtype == "fp32":
        own_clip, json["gradient_clipping"] = json["gradient_clipping"], 0.0
    if facts.dtype == "bf16":
        json["communication_data_type"] = json.get("communication_data_type") or "fp32"
        if stage >= 2:
            json["data_types"] = {"grad_accum_dtype": "fp32"} | json.get("data_types", {})
    return EngineConfig(json, stage, own_clip)


def scoring_config(role: WorkerConfig) -> EngineConfig:
    """The engine of a role that only scores: ZeRO-3 if asked for, otherwise whole weights on every rank (stages 1 and 2
    shard what only training has)."""
    json = complete_deepspeed_config(role.strategy_config, DeepSpeedFacts(dtype=role.model_args.dtype))
    stage = PARTITIONED_WEIGHTS if zero_stage(json) == PARTITIONED_WEIGHTS else 0
    zero = {key: value for key, value in json["zero_optimization"].items() if key != "offload_optimizer"}
    json["zero_optimization"] = zero | {"stage": stage}
    if stage == 0:
        json["zero_optimization"] = {"stage": 0}
    json["train_micro_batch_size_per_gpu"] = role.infer_batch_size  # DeepSpeed wants one; nothing here depends on it
    for key in ("train_batch_size", "gradient_accumulation_steps"):
        json.pop(key, None)
    return EngineConfig(json, stage)


class DeepSpeedRank:
    """Starts this rank and loads the role's model; knows whether weights are partitioned."""

    def __init__(self, role: WorkerConfig, context: RankContext, config: EngineConfig):
        self.role, self.context, self.config = role, context, config
        self.platform = platform_of(context.device)
        self.engine: DeepSpeedEngine | None = None

    def start(self) -> None:
        """Joins the role's process group. A rank that does not come is an error after backend_timeout, not a hang."""
        self.platform.set_device(self.context.device)
        os.environ["DS_ACCELERATOR"] = self.context.device.type
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

    def load_model(self, with_adapters: bool = False) -> LoadedModel:
        """Return the role's model on this rank's device, with its adapters if `with_adapters`. Under ZeRO-3 it is this
        rank's part of the model."""
        torch.manual_seed(self.context.seed)
        with self._partitioned_loading():
            model = load_model(self.role.model_args, self.context.head, self.gathered, with_adapters=with_adapters)
        if not self.context.shows_pictures:
            model.freeze_tower()
        if model.adapters is not None:  # peft makes them in fp32, and ZeRO-3 would leave them so
            for parameter in model.module.parameters():
                parameter.data = parameter.data.to(DTYPES[self.role.model_args.dtype])
        if self.config.partitions_weights:
            from deepspeed.utils import set_z3_leaf_modules

            heads = [LogProbHead] if self.context.head == "lm" else []
            if leaves := [*heads, *looping_experts(model.module)]:
                set_z3_leaf_modules(model.module, leaves)
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


def looping_experts(root: nn.Module) -> list[type[nn.Module]]:
    """Classes of modules that own the weights of all experts of a layer and call modules below them once for each
    expert that is chosen: not as often on one rank as on another. What has three dimensions and a first of 1 belongs to
    no experts: positions of pictures."""

    def has_experts(module: nn.Module) -> bool:
        shapes = [full_shape(parameter) for parameter in module.parameters(recurse=False)]
        return any(len(shape) == 3 and shape[0] > 1 for shape in shapes)

    found = (module for module in root.modules() if has_experts(module))
    others = {id(experts) for _, experts in experts_of(root)}
    return list({type(module): None for module in found if id(module) not in others and any(module.children())})


def full_dimensions(parameter: nn.Parameter) -> int:
    """Dimensions of the whole parameter, also when this rank holds a flat part of it."""
    return len(full_shape(parameter))


def full_shape(parameter: nn.Parameter) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


# Moving the states of a DeepSpeed engine between its GPU and host memory, each on its own.

_ZERO_KINDS = {
    State.WEIGHTS: {Kind.lp_params},
    State.GRADIENTS: {Kind.lp_grads},
    State.OPTIMIZER: {Kind.hp_params, Kind.optim_states},
}


class ScorerOffload:
    """The weights of an engine that trains none of them."""

    def __init__(self, engine: DeepSpeedEngine, config: EngineConfig):
        self._engine, self._config = engine, config
        self._copies = HostCopies(frozen=True)

    def to_host(self) -> None:
        if self._config.partitions_weights:
            self._engine.empty_partition_cache()  # what the last pass left gathered
        self._copies.take(untrained(self._engine, self._config))

    def to_device(self) -> None:
        self._copies.bring_back(untrained(self._engine, self._config))


class Offload:
    """All that a trainer holds. What the configuration keeps in host memory anyway is left alone. DeepSpeed moves the
    buffers of ZeRO; what it does not move (weights that are not trained, an engine without ZeRO, the states of torch's
    AdamW in ZeRO-3) goes by `HostCopies`."""

    def __init__(self, engine: DeepSpeedEngine, config: EngineConfig):
        self._engine, self._config = engine, config
        self._copies, self._frozen = HostCopies(), HostCopies(frozen=True)

    def to_host(self, states: frozenset[State]) -> None:
        optimizer = self._zero_optimizer()
        if self._config.partitions_weights:
            self._engine.empty_partition_cache()
        self._copies.take(self._tensors(states))
        self._frozen.take(self._untrained(states))
        if optimizer is not None:
            with self._trained_module(optimizer):
                optimizer.offload_states(include=self._kinds(states))

    def to_device(self, states: frozenset[State]) -> None:
        """DeepSpeed reloads whatever its set of offloaded kinds holds, so the others leave it for the call."""
        optimizer = self._zero_optimizer()
        self._copies.bring_back(self._tensors(states))
        self._frozen.bring_back(self._untrained(states))
        if optimizer is None:
            return
        staying = optimizer.offloaded_states - self._kinds(states)
        optimizer.offloaded_states -= staying
        try:
            optimizer.reload_states()
        finally:
            optimizer.offloaded_states |= staying

    def forget_frozen(self) -> None:
        """A checkpoint may hold other values of what is not trained now."""
        self._frozen.forget()

    def _zero_optimizer(self) -> Any:
        """None without ZeRO."""
        optimizer: Any = self._engine.optimizer
        if isinstance(optimizer, BF16_Optimizer):
            raise StrategyError(
                "ZeRO stage 1 with bf16 and data_types.grad_accum_dtype fp32 cannot be offloaded. Use "
                "zero_optimization.stage: 2, or devices that no other role shares."
            )
        return optimizer if self._config.stage > 0 else None

    def _kinds(self, states: frozenset[State]) -> set[Kind]:
        """Return the states that DeepSpeed can move itself. In ZeRO-3 it moves the states of its own FusedAdam only,
        and the gradients of an optimizer that works in host memory lie there as well."""
        kinds = {kind for state in states for kind in _ZERO_KINDS.get(state, ())}
        if self._config.partitions_weights and State.GRADIENTS in states:
            kinds.add(Kind.contiguous_grad_buffer)
        if self._config.partitions_weights or self._config.keeps_on_host("offload_optimizer"):
            kinds -= {Kind.hp_params, Kind.optim_states}
        if self._config.partitions_weights and self._config.keeps_on_host("offload_optimizer"):
            kinds -= {Kind.lp_grads}
        if self._config.keeps_on_host("offload_param"):
            kinds -= {Kind.lp_params}
        return kinds

    def _untrained(self, states: frozenset[State]) -> Iterator[torch.Tensor]:
        if State.WEIGHTS in states:
            yield from untrained(self._engine, self._config)

    def _tensors(self, states: frozenset[State]) -> Iterator[torch.Tensor]:
        """Yield the tensors that change and that DeepSpeed does not move."""
        if State.WEIGHTS in states and self._config.stage == 0:
            model: Any = self._engine.module
            yield from (parameter for parameter in model.parameters() if parameter.requires_grad)
        if State.OPTIMIZER in states:
            yield from self._optimizer_tensors()

    def _optimizer_tensors(self) -> Iterator[torch.Tensor]:
        optimizer: Any = self._engine.optimizer
        if self._config.partitions_weights and not self._config.keeps_on_host("offload_optimizer"):
            yield from optimizer.fp32_partitioned_groups_flat
            yield from _moments(optimizer.optimizer)
        elif self._config.stage > 0 and not self._config.keeps_on_host("offload_optimizer"):
            yield from _eight_bit(optimizer.optimizer)
        elif self._config.stage == 0:
            basic: Any = self._engine.basic_optimizer
            yield from _moments(basic)
            if optimizer is not basic:  # bf16: fp32 copies of the weights
                yield from (master for group in basic.param_groups for master in group["params"])

    @contextmanager
    def _trained_module(self, optimizer: Any) -> Iterator[None]:
        """DeepSpeed 0.19 looks for every parameter of its module in a buffer of the trained ones (ZeRO-3)."""
        if not self._config.partitions_weights:
            yield
            return
        module, optimizer.module = optimizer.module, _Trained(optimizer.module)
        try:
            yield
        finally:
            optimizer.module = module


class _Trained:
    def __init__(self, module: torch.nn.Module):
        self._module = module

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return (parameter for parameter in self._module.parameters() if parameter.requires_grad)


def untrained(engine: DeepSpeedEngine, config: EngineConfig) -> Iterator[torch.Tensor]:
    """This rank's part of weights that are not trained: DeepSpeed moves its own buffers, which hold the others only.
    Without those that the configuration keeps in host memory."""
    if config.keeps_on_host("offload_param"):
        return
    model: Any = engine.module
    for parameter in model.parameters():
        if not parameter.requires_grad:
            yield parameter.ds_tensor if config.partitions_weights else parameter


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Moments of the optimizer, without the step counts, which torch keeps in host memory."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if torch.is_tensor(value) and value.ndim)


def _eight_bit(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Moments of which DeepSpeed knows nothing: it looks for those of AdamW by name."""
    states = [state for state in optimizer.state.values() if "state1" in state]
    yield from (value for state in states for value in state.values() if torch.is_tensor(value) and value.ndim)
