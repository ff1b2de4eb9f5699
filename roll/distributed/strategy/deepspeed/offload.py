"""Moving the states of a DeepSpeed engine between its GPU and host memory, each on its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind

from roll.distributed.strategy.base import State
from roll.distributed.strategy.deepspeed.config import EngineConfig
from roll.distributed.strategy.host_copies import HostCopies
from roll.errors import StrategyError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

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
        """What DeepSpeed is asked to move. In ZeRO-3 it moves the states of its own FusedAdam only, and the gradients
        of an optimizer that works in host memory lie there as well."""
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
        """What changes, and DeepSpeed is not asked to move."""
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
