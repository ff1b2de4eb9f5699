"""Moving what a trainer holds between the GPU and host memory, state by state. On a CPU nothing calls this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from roll.distributed.strategy.base import State
from roll.distributed.strategy.host_copies import HostCopies

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Offload:
    """`chunks` are wrapped for training. No tensor is replaced: Megatron collects gradients by hooks on parameters, and
    its buffers, weights and fp32 copies are views of each other."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any):
        self._chunks, self._optimizer = chunks, optimizer
        self._copies, self._frozen = HostCopies(), HostCopies(frozen=True)
        self._dropped: list[tuple[torch.Tensor, int]] = []  # buffers of gradients and their bytes

    def to_host(self, states: frozenset[State]) -> None:
        """Gradients are dropped, the rest is kept."""
        if State.OPTIMIZER in states:
            self._copies.take(self._optimizer_tensors())
        if State.WEIGHTS in states:
            self._copies.take(weight for weight in self._weights() if weight.requires_grad)
            self._frozen.take(weight for weight in self._weights() if not weight.requires_grad)
        if State.GRADIENTS in states:
            self._drop_gradients()

    def to_device(self, states: frozenset[State]) -> None:
        """What `to_host` moved. Gradients come back as zeros."""
        if State.WEIGHTS in states:
            self._copies.bring_back(weight for weight in self._weights() if weight.requires_grad)
            self._frozen.bring_back(weight for weight in self._weights() if not weight.requires_grad)
        if State.OPTIMIZER in states:
            self._copies.bring_back(self._optimizer_tensors())
        if State.GRADIENTS in states:
            for gradients, size in self._dropped:
                gradients.untyped_storage().resize_(size)
                gradients.zero_()
            self._dropped.clear()

    def forget_frozen(self) -> None:
        """A checkpoint may hold other values of what is not trained now."""
        self._frozen.forget()

    def _weights(self) -> Iterator[torch.Tensor]:
        """Weights of all chunks. Under the distributed optimizer most are views of one buffer, which is moved as a
        whole."""
        for chunk in self._chunks:
            yield from chunk.module.parameters()

    def _drop_gradients(self) -> None:
        for parameter in self._optimizer_parameters():
            parameter.grad = None
        for chunk in self._chunks:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                storage = buffer.grad_data.untyped_storage()
                if storage.nbytes():
                    self._dropped.append((buffer.grad_data, storage.nbytes()))
                    storage.resize_(0)

    def _optimizer_tensors(self) -> Iterator[torch.Tensor]:
        """Moments, and the fp32 weights where they are copies; where they are the weights themselves, or views of them,
        they go with those."""
        weights = {_identity(weight) for weight in self._weights()}
        yield from (parameter for parameter in self._optimizer_parameters() if _identity(parameter) not in weights)
        for part in self._parts():
            for state in part.optimizer.state.values():
                yield from (state[name] for name in _MOMENTS if name in state)

    def _optimizer_parameters(self) -> Iterator[torch.Tensor]:
        for part in self._parts():
            for group in part.optimizer.param_groups:
                yield from group["params"]

    def _parts(self) -> Iterator[Any]:
        """A rank may have nothing in one of the optimizers that Megatron chains."""
        yield from (part for part in self._optimizer.chained_optimizers if part.optimizer is not None)


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
