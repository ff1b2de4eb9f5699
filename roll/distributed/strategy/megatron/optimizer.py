"""Megatron's optimizer under our schedule: clipping at the norm of the whole gradient, decay on matrices only."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.training import TrainingArgs
from roll.configs.strategies.megatron_config import MegatronSettings
from roll.distributed.strategy.optimizer import learning_rate_factor, not_finite
from roll.platforms.cpu_stand_ins.megatron import cuda_type_names
from roll.platforms.table import platform_of


def wrap(
    chunks: Sequence[nn.Module],
    config: TransformerConfig,
    settings: MegatronSettings,
    partly_summed: Sequence[nn.Parameter] = (),
    twins: Sequence[nn.Parameter] = (),
) -> list[Any]:
    """The chunks with gradient buffers that are summed (not averaged) over data- and context-parallel ranks, in
    fp32; those of `partly_summed` over the tensor-parallel ranks of experts as well, those of `twins` over the first
    and the last stage."""
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=settings.overlap_grad_reduce,
        overlap_param_gather=settings.overlap_param_gather,
        use_distributed_optimizer=settings.use_distributed_optimizer,
        check_for_nan_in_grad=False,  # it raises on one rank while the others wait; the norm tells all
        average_in_collective=False,
        bucket_size=settings.bucket_size,
    )
    modules = [Float16Module(config, chunk) if config.bf16 else chunk for chunk in chunks]
    wrapped = [DistributedDataParallel(config, ddp, module) for module in modules]
    config.finalize_model_grads_func = partial(_finalize, partly_summed, twins)
    if settings.overlap_grad_reduce:
        per_chunk: Any = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = per_chunk if len(per_chunk) > 1 else per_chunk[0]
    return wrapped


def _finalize(
    partly_summed: Sequence[Any],
    twins: Sequence[Any],
    model: list[Any],
    num_tokens: torch.Tensor | None = None,
    **options: Any,
) -> None:
    """Finalizes gradients without Megatron's division by the number of tokens: the loss has already divided by the
    global counts."""
    finalize_model_grads(model, None, **options)
    for parameter in twins:
        dist.all_reduce(parameter.main_grad, group=parallel_state.get_embedding_group())
    if partly_summed:
        flat = torch.cat([parameter.main_grad.flatten() for parameter in partly_summed])
        dist.all_reduce(flat, group=parallel_state.get_expert_tensor_parallel_group())
        sizes = [parameter.main_grad.numel() for parameter in partly_summed]
        for parameter, part in zip(partly_summed, flat.split(sizes), strict=True):
            parameter.main_grad.copy_(part.view_as(parameter.main_grad))


_APART = "apart"


def keep_apart(parameters: Iterable[nn.Parameter]) -> None:
    """Marks parameters that are no part of the gradient that is clipped as one: they have a norm of their own. Megatron
    leaves those whose `shared` is true out of the norm, as copies of others, and hands the mark on to fp32 copies.
    Before the optimizer is there."""
    for parameter in parameters:
        parameter.shared = _APART  # type: ignore[attr-defined]


class Updater:
    """One optimizer step after the other."""

    def __init__(
        self,
        chunks: Sequence[Any],
        config: TransformerConfig,
        settings: MegatronSettings,
        args: TrainingArgs,
        plan: TrainPlan,
        keeps_apart: bool,
    ):
        """`keeps_apart`: some rank has parameters marked by `keep_apart`."""
        self._chunks, self._args, self._plan = list(chunks), args, plan
        self._keeps_apart = keeps_apart
        self._gathers_late = settings.overlap_param_gather
        self.updates_done = 0  # all that the moments have seen
        options = OptimizerConfig(
            optimizer="adam",
            lr=args.learning_rate,
            min_lr=0.0,
            weight_decay=args.weight_decay,
            adam_beta1=args.adam_beta1,
            adam_beta2=args.adam_beta2,
            adam_eps=args.adam_epsilon,
            clip_grad=plan.max_grad_norm,
            bf16=config.bf16,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=settings.use_distributed_optimizer,
            overlap_param_gather=settings.overlap_param_gather,
        )
        with cuda_type_names(parameter for chunk in self._chunks for parameter in chunk.parameters()):
            self.optimizer: Any = get_megatron_optimizer(options, self._chunks)  # chained, one per kind of parameter
        config.grad_scale_func = self.optimizer.scale_loss
        self._is_on_gpu = platform_of(next(self._chunks[0].parameters()).device).is_accelerator

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        args, plan = self._args, self._plan
        min_ratio = float(args.lr_scheduler_kwargs.get("min_lr_ratio", 0.0))
        return args.learning_rate * learning_rate_factor(
            args.lr_scheduler_type, self.updates_done, plan.total_updates, plan.warmup_updates, min_ratio
        )

    def apply_settings(self) -> None:
        """A loaded optimizer state brings its own betas and epsilon along; rate, decay and clip are set in each
        step."""
        for group in self.optimizer.param_groups:
            group["betas"], group["eps"] = (self._args.adam_beta1, self._args.adam_beta2), self._args.adam_epsilon

    def clear(self) -> None:
        """Gradients to zero."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def step(self, role: str) -> dict[str, float]:
        """Clips, updates, and returns `grad_norm` (before clipping) and `learning_rate`. StrategyError on every rank,
        with the weights untouched, if the gradient is not finite."""
        learning_rate = self.learning_rate
        self._set(learning_rate)
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm() or 0.0)
        if not math.isfinite(norm):
            raise not_finite(role, norm)
        apart = self._norm_apart()
        if not math.isfinite(apart):
            raise not_finite(role, apart)
        if self._plan.max_grad_norm > 0:
            for part in self.optimizer.chained_optimizers:
                for is_apart, own_norm in ((False, norm), (True, apart)):
                    if parameters := [p for p in part.get_parameters() if _is_apart(p) is is_apart]:
                        megatron_optimizer.clip_grad_by_total_norm_fp32(parameters, self._plan.max_grad_norm, own_norm)
        prefer_fused(self.optimizer.chained_optimizers, self._is_on_gpu)
        self.optimizer.step_with_ready_grads()
        self.updates_done += 1
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def _norm_apart(self) -> float:
        """Norm of the gradients that are clipped apart. Collective if there are any."""
        if not self._keeps_apart:
            return 0.0
        norms = []
        for part in self.optimizer.chained_optimizers:
            params = [p for p in part.get_parameters() if _is_apart(p) and p.grad is not None]
            gradients = [p.grad for p in params if param_is_not_tensor_parallel_duplicate(p)]
            norms.append(megatron_optimizer.get_grad_norm_fp32(gradients, 2, part.get_grad_stats_parallel_group()))
        return math.hypot(*map(float, norms))

    def _set(self, learning_rate: float) -> None:
        # Megatron's own scheduler would apply the multipliers; without it weight decay reaches norms and biases.
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_mult", 1.0)
            group["weight_decay"] = self._args.weight_decay * group["wd_mult"]

    def finish_gather(self) -> None:
        """Gathers the updated weights now. With overlap_param_gather they would be complete only when the next forward
        pass begins."""
        if self._gathers_late:
            for chunk in self._chunks:
                chunk.start_param_sync(force_sync=True)


def prefer_fused(parts: Iterable[Any], on_gpu: bool) -> None:
    """Has torch's AdamW step by its fused kernel on a GPU, which needs no temporaries: Megatron makes it without, whose
    temporaries are one fp32 copy of the rank's share. Counts of steps, which a checkpoint brings back to host memory,
    lie beside the weights then. On a CPU the kernel that does not fuse goes on, also after a checkpoint of a GPU."""
    for part in parts:
        optimizer = part.optimizer
        if not isinstance(optimizer, torch.optim.Adam):  # transformer-engine's is fused; a rank may have none
            continue
        for group in optimizer.param_groups:
            group["fused"] = True if on_gpu else None
        if on_gpu:
            for parameter, state in optimizer.state.items():
                if "step" in state:
                    state["step"] = state["step"].to(parameter.device, torch.float32)


def _is_apart(parameter: torch.Tensor) -> bool:
    return getattr(parameter, "shared", False) == _APART
