"""Moving the states of a DeepSpeed engine between its GPU and host memory, each on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind
from deepspeed.runtime.zero.offload_states import offload_optimizer_states, reload_optimizer_states

from roll.distributed.strategy.base import State
from roll.distributed.strategy.deepspeed_config import EngineConfig
from roll.errors import StrategyError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_ZERO_KINDS = {
    State.WEIGHTS: {Kind.lp_params},
    State.GRADIENTS: {Kind.lp_grads},
    State.OPTIMIZER: {Kind.hp_params, Kind.optim_states},
}


def offload(engine: DeepSpeedEngine, states: frozenset[State], config: EngineConfig) -> None:
    """To host memory. What the configuration keeps there anyway is left alone."""
    optimizer: Any = engine.optimizer
    if config.stage == 0:
        _move_plain(engine, states, torch.device("cpu"))
        return
    _check(optimizer)
    kinds = _kinds(states, config)
    if config.partitions_weights:
        kinds |= {Kind.contiguous_grad_buffer} if State.GRADIENTS in states else set()
        if Kind.optim_states in kinds:
            _offload_zero3_optimizer(optimizer)
        kinds -= {Kind.hp_params, Kind.optim_states}
    with _trained_module(optimizer) if config.partitions_weights else nullcontext():
        optimizer.offload_states(include=kinds)
    if Kind.lp_params in kinds:
        _move(untrained(engine, config), torch.device("cpu"))


def load(engine: DeepSpeedEngine, states: frozenset[State], config: EngineConfig, device: torch.device) -> None:
    """Back to the device. DeepSpeed reloads whatever its set of offloaded kinds holds, so the others leave it for the
    call."""
    optimizer: Any = engine.optimizer
    if config.stage == 0:
        _move_plain(engine, states, device)
        return
    _check(optimizer)
    kinds = _kinds(states, config)
    if config.partitions_weights:
        kinds |= {Kind.contiguous_grad_buffer} if State.GRADIENTS in states else set()
        if Kind.optim_states in kinds:
            _load_zero3_optimizer(optimizer, device)
        kinds -= {Kind.hp_params, Kind.optim_states}
    staying = {kind for kind in optimizer.offloaded_states if kind not in kinds}
    optimizer.offloaded_states -= staying
    try:
        optimizer.reload_states()
    finally:
        optimizer.offloaded_states |= staying
    if Kind.lp_params in kinds:
        _move(untrained(engine, config), device)


def move_scorer(engine: DeepSpeedEngine, config: EngineConfig, device: torch.device) -> None:
    """The weights of an engine that trains none of them."""
    if config.partitions_weights:
        engine.empty_partition_cache()  # what the last pass left gathered
    _move(untrained(engine, config), device)


def _kinds(states: frozenset[State], config: EngineConfig) -> set[Kind]:
    kinds = {kind for state in states for kind in _ZERO_KINDS.get(state, ())}
    zero = config.json["zero_optimization"]
    if _on_host(zero.get("offload_optimizer")):
        kinds -= {Kind.hp_params, Kind.optim_states}
    if _on_host(zero.get("offload_param")):
        kinds -= {Kind.lp_params}
    return kinds


def _on_host(section: dict[str, Any] | None) -> bool:
    return bool(section) and section.get("device", "none") != "none"


def untrained(engine: DeepSpeedEngine, config: EngineConfig) -> Iterator[torch.Tensor]:
    """This rank's part of weights that are not trained: DeepSpeed moves its own buffers, which hold the others only.
    Without those that the configuration keeps in host memory."""
    if _on_host(config.json["zero_optimization"].get("offload_param")):
        return
    model: Any = engine.module
    for parameter in model.parameters():
        if not parameter.requires_grad:
            yield parameter.ds_tensor if config.partitions_weights else parameter


def _move(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    for tensor in tensors:
        tensor.data = tensor.data.to(device)


@contextmanager
def _trained_module(optimizer: Any) -> Iterator[None]:
    """DeepSpeed 0.19 looks for every parameter of its module in a buffer of the trained ones (ZeRO-3)."""
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


def _check(optimizer: object) -> None:
    if isinstance(optimizer, BF16_Optimizer):
        raise StrategyError(
            "ZeRO stage 1 with bf16 and data_types.grad_accum_dtype fp32 cannot leave its device. Use "
            "zero_optimization.stage: 2, or devices that no other role shares."
        )


def _offload_zero3_optimizer(optimizer: Any) -> None:
    """DeepSpeed moves the states of its own FusedAdam only."""
    for flat in optimizer.fp32_partitioned_groups_flat:
        flat.data = flat.data.to("cpu")
    offload_optimizer_states(optimizer.optimizer, torch.device("cpu"))


def _load_zero3_optimizer(optimizer: Any, device: torch.device) -> None:
    for flat in optimizer.fp32_partitioned_groups_flat:
        flat.data = flat.data.to(device)
    reload_optimizer_states(optimizer.optimizer, device)


def _move_plain(engine: DeepSpeedEngine, states: frozenset[State], device: torch.device) -> None:
    """Without ZeRO: parameters, torch's optimizer states, and (bf16) DeepSpeed's fp32 copies."""
    model: Any = engine.module
    if State.WEIGHTS in states:
        _move(model.parameters(), device)
    if State.OPTIMIZER in states:
        reload_optimizer_states(engine.basic_optimizer, device)
        _move(_masters(engine), device)


def _masters(engine: DeepSpeedEngine) -> Iterator[torch.Tensor]:
    basic: Any = engine.basic_optimizer
    if engine.optimizer is not basic:
        yield from (master for group in basic.param_groups for master in group["params"])
