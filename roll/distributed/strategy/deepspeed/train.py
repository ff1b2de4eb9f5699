"""`deepspeed_train`: ZeRO stages 0 to 3 over data-parallel ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import nn

from roll.algorithms.loss import Loss
from roll.algorithms.moe_aux_loss import with_balance
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.data_parallel import (
    RankGroups,
    draw_apart,
    random_state,
    random_state_file,
    set_random_state,
)
from roll.distributed.strategy.deepspeed.rank import (
    DeepSpeedRank,
    Offload,
    full_dimensions,
    full_shape,
    training_config,
)
from roll.distributed.strategy.model_score import ModelTrainStrategy
from roll.distributed.strategy.optimizer import go_on_after, not_finite, optimizer_of, schedule
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.distributed.weights.bucket import WeightBucket, fill_buckets
from roll.errors import StrategyError
from roll.types.batch import LossScale, MicroBatch
from roll.types.metrics import MetricSums

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


class DeepSpeedTrainStrategy(ModelTrainStrategy):
    """Policy, critic or reward model (context.head) under AdamW; fp32, or bf16 with fp32 master weights.

    DeepSpeed averages gradients over the ranks; the loss is multiplied by their number, so that the gradient of the
    update is the sum of what all micro batches of all ranks returned.
    """

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        super().__init__(role, context, plan)
        self.rank = DeepSpeedRank(role, context, training_config(role, plan))
        self._engine: DeepSpeedEngine | None = None

    @property
    def engine(self) -> DeepSpeedEngine:
        assert self._engine is not None, "setup() comes first"
        return self._engine

    def setup(self) -> None:
        self.rank.start()
        self._groups = RankGroups.made(self.role, self.context)
        self._model = self.rank.load_model(with_adapters=True)
        self._check_balance()
        args = self.role.training_args
        optimizer = optimizer_of(self._model.module, args, full_dimensions)
        self._schedule = schedule(optimizer, args, self.plan.total_updates, self.plan.warmup_updates)
        with _no_dummy_step(optimizer):
            self._engine = self.rank.initialize(self._model.module, optimizer=optimizer, lr_scheduler=self._schedule)
        self._offload: Offload = Offload(self.engine, self.rank.config)
        self._trainable = [parameter for parameter in self._model.module.parameters() if parameter.requires_grad]
        self._prepare()
        draw_apart(self.context.seed, self.context.rank)

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        if not micro_batches:
            raise ValueError("an update needs at least one micro batch on every rank")
        sums, ranks = MetricSums(), self.context.world_size
        loss = with_balance(loss, self.role.model_args.moe_aux_loss_coef, micro_batches, self.all_reduce_sum)
        if self.plan.optimizer_waits:
            self._offload.to_host(frozenset({State.OPTIMIZER}))
        for i, micro_batch in enumerate(micro_batches):
            # Explicit, because the number of micro batches may differ from update to update.
            self.engine.set_gradient_accumulation_boundary(i == len(micro_batches) - 1)
            batch = micro_batch.to(self.context.device)
            total, metrics = loss(self._outputs(self.engine, batch, loss, temperature), batch, scale)
            self.engine.backward(total * ranks if ranks > 1 else total, scale_wrt_gas=False)
            sums.merge([metrics])
        learning_rate = float(self._schedule.get_last_lr()[0])
        if self.plan.optimizer_waits:
            self._offload.to_device(frozenset({State.OPTIMIZER}))
        grad_norm = self._step()
        return sums.to_floats(), {"grad_norm": grad_norm, "learning_rate": learning_rate}

    def _step(self) -> float:
        """Clips and updates; the gradient norm before clipping. StrategyError if it is not finite."""
        own_norm = self._clip() if self.rank.config.stage == 0 and self.role.model_args.dtype == "fp32" else None
        self.engine.step()
        norm = own_norm if own_norm is not None else self.engine.get_global_grad_norm()
        grad_norm = float(norm) if norm is not None else math.nan
        applied = self.engine.was_step_applied()
        if not applied or not math.isfinite(grad_norm) or grad_norm < 0:  # DeepSpeed's word for no number is -1
            raise not_finite(self.context.role, grad_norm, "lost" if applied else "untouched")
        return grad_norm

    def _clip(self) -> torch.Tensor:
        gradients = [parameter.grad for parameter in self._trainable if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            raise not_finite(self.context.role, float(norm))
        if self.rank.config.own_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(self._trainable, self.rank.config.own_clip, norm)
        return norm

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return self.rank.evened_out(micro_batches)

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        """The tensors of a bucket are valid until the next one is asked for."""
        is_wanted = self.exports_weights or self.context.rank in to
        parameters, exports = dict(self.model.module.named_parameters()), self._exports(whole, merged)
        shapes = ((name, _form(parameters[export.weight])) for name, export in exports.items())
        for bucket in fill_buckets(shapes, bucket_bytes, self.model.joined_in_files):
            chosen = [(exports[name], form.dtype) for name, form in bucket]
            with self.rank.gathered([parameters[n] for export, _ in chosen for n in export.parameters], modify=False):
                weights = [(e.name, e.value(parameters.__getitem__, dtype)) for e, dtype in chosen] if is_wanted else []
                yield self.model.in_checkpoint_form(weights)
        yield from self._beside_weights(exports, whole, is_wanted, bucket_bytes)

    def save_checkpoint(self, directory: Path) -> None:
        save(self.engine, directory, self.context.rank, SavedFacts(self._facts), self._has_adapters)

    def load_checkpoint(self, directory: Path) -> None:
        SavedFacts.agreeing(directory, self._facts)
        load(self.engine, directory, self.context.rank, self._has_adapters)
        self._offload.forget_frozen()

    @property
    def _has_adapters(self) -> bool:
        return self.model.adapters is not None

    def _trained_on_host(self) -> dict[str, torch.Tensor]:
        trained = {}
        for name, parameter in self.model.module.named_parameters():
            if parameter.requires_grad:
                with self.rank.gathered([parameter], modify=False):
                    trained[self.model.hf_names[name]] = parameter.detach().to("cpu", copy=True)
        return trained

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves states to host memory. On a CPU everything is there already."""
        if self.context.device.type != "cpu":
            self._offload.to_host(states)
            self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if self.context.device.type != "cpu":
            self._offload.to_device(states)

    def shutdown(self) -> None:
        self.rank.stop()
        self._engine = None
        self._model = None


def _form(parameter: nn.Parameter) -> torch.Tensor:
    return torch.empty(full_shape(parameter), dtype=parameter.dtype, device="meta")


@contextmanager
def _no_dummy_step(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Undoes the step on zero gradients with which DeepSpeed 0.19 allocates AdamW's states in bf16 without ZeRO: it
    would count as the first of the bias correction, and decay the weights."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.state.clear()


# Saving and loading the state of a DeepSpeed engine, without ever unpickling arbitrary objects.

_TAG = "engine"
_GROUP_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps")
_SAFE_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


class SafeCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed's own reader unpickles whatever a file holds; this one takes tensors, plain values and four named
    classes."""

    def load(self, path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)


def save(engine: DeepSpeedEngine, directory: Path, rank: int, facts: SavedFacts, trained_only: bool = False) -> None:
    """Weights (or those that are trained), optimizer, schedule and random state. `facts` are what a loader must agree
    with. Collective."""
    engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False, exclude_frozen_parameters=trained_only)
    torch.save(random_state(), random_state_file(directory, rank))
    if rank == 0:
        facts.write(directory)
    torch.distributed.barrier()


def load(engine: DeepSpeedEngine, directory: Path, rank: int, trained_only: bool = False) -> None:
    """Restores what `save` wrote, under the learning rate, decay, betas, epsilon and clip that the engine was built
    with. Collective."""
    engine.checkpoint_engine = SafeCheckpointEngine()
    with _deepspeed_settings(engine):
        path, _ = engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=not trained_only)
    if path is None:
        raise StrategyError(f"{directory / _TAG} holds no complete checkpoint of deepspeed_train")
    set_random_state(torch.load(random_state_file(directory, rank), weights_only=True))


@contextmanager
def _deepspeed_settings(engine: DeepSpeedEngine) -> Iterator[None]:
    """Restore the engine's optimizer settings after the block: a checkpoint loaded inside brings its own. The schedule
    stays at the place that was loaded."""
    optimizer: Any = engine.basic_optimizer
    schedule: Any = engine.lr_scheduler
    groups = [{key: group[key] for key in _GROUP_SETTINGS} for group in optimizer.param_groups]
    yield
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)
    schedule.base_lrs = [saved["initial_lr"] for saved in groups]
    go_on_after(schedule, schedule.last_epoch)
    wrapper: Any = engine.optimizer
    if wrapper is not optimizer:
        wrapper.clip_grad = engine.gradient_clipping()
