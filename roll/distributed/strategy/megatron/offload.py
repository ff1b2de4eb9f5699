"""Moving what a trainer holds between the GPU and host memory, state by state. On a CPU nothing calls this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from roll.distributed.strategy.base import State

HOST = torch.device("cpu")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def to_host(chunks: Sequence[Any], optimizer: Any, states: frozenset[State]) -> None:
    """`chunks` are wrapped for training. Gradients are dropped, the rest is kept."""
    for buffer in _buffers(chunks):
        buffer.offload_to_cpu(State.WEIGHTS in states, State.GRADIENTS in states)
    if State.WEIGHTS in states:
        _move_weights(chunks, HOST)
    if State.OPTIMIZER in states:
        _move_optimizer(optimizer, HOST)


def to_device(chunks: Sequence[Any], optimizer: Any, states: frozenset[State], device: torch.device) -> None:
    """What `to_host` moved. Gradients come back as zeros."""
    for buffer in _buffers(chunks):
        buffer.reload_from_cpu(State.WEIGHTS in states, State.GRADIENTS in states)
    if State.WEIGHTS in states:
        _move_weights(chunks, device)
    if State.OPTIMIZER in states:
        _move_optimizer(optimizer, device)


def _buffers(chunks: Sequence[Any]) -> Iterator[Any]:
    for chunk in chunks:
        yield from (*chunk.buffers, *chunk.expert_parallel_buffers)


def _move_weights(chunks: Sequence[Any], device: torch.device) -> None:
    """Those that lie in no shared buffer: all of them without the distributed optimizer, frozen ones with it."""
    held = {id(p) for buffer in _buffers(chunks) if buffer.param_data is not None for p in buffer.params}
    for chunk in chunks:
        for parameter in chunk.module.parameters():
            if id(parameter) not in held:
                parameter.data = parameter.data.to(device)


def _move_optimizer(optimizer: Any, device: torch.device) -> None:
    """Moments, and the fp32 weights where they are copies. An fp32 model's are the weights themselves (or views of
    them), and go with those: moving them here would cut the tie."""
    for part in optimizer.chained_optimizers:
        if part.optimizer is None:
            continue
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                if part.config.bf16:
                    parameter.grad = None
                    parameter.data = parameter.data.to(device)
        for state in part.optimizer.state.values():
            for name in _MOMENTS:
                if name in state:
                    state[name] = state[name].to(device)
