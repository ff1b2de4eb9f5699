"""Matrix products and sums whose result for a row depends on that row and on nothing else, to the last bit.

On CPUs they are torch's, with as many rows as `sizes.py` says. On GPUs no number of rows has the kernel of another, so
products are those of `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from roll.errors import StrategyError

_Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def by_kernels(device: torch.device) -> bool:
    """Return whether products on this device are those of `kernels.py`."""
    return device.type == "cuda"


@cache
def _kernel() -> _Kernel:
    """StrategyError where Triton is not installed."""
    try:
        return import_module("roll.models.exact.kernels").batched_product
    except ImportError as error:
        raise StrategyError(
            "exact_log_probs computes by Triton on GPUs, and it is not installed. Install triton, or set "
            "exact_log_probs to false"
        ) from error


def exact_linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """States [..., in] with weight [out, in], plus bias: [..., out], as functional.linear."""
    if not by_kernels(states.device):
        return functional.linear(states, weight, bias)
    output: torch.Tensor = _Linear.apply(states, weight, bias)  # type: ignore[assignment]
    return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        rows = _kernel()(states.reshape(1, -1, states.shape[-1]), weight.T[None], bias)
        return rows.reshape(*states.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        states, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        wanted = ctx.needs_input_grad
        return (
            gradient @ weight if wanted[0] else None,
            rows.T @ states.flatten(0, -2) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )


def block_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Left [(blocks,) R, groups, M, K] with right [blocks, R, groups, K, N] -> [blocks, R, groups, M, N], without
    gradients."""
    if not by_kernels(left.device):
        return torch.matmul(left, right)
    product = _kernel()(left.flatten(0, -3), right.flatten(0, -3), None)
    return product.unflatten(0, right.shape[:-2])


def block_sums(weights: torch.Tensor) -> torch.Tensor:
    """[..., n] -> [...]. On GPUs n is a power of 2: torch's sums there go by the number of results."""
    if not by_kernels(weights.device):
        return weights.sum(-1)
    while (half := weights.shape[-1] // 2) > 0:
        weights = weights[..., :half] + weights[..., half:]
    return weights[..., 0]


class _ExactProducts(TorchFunctionMode):
    """Computes a module's products by `exact_linear`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _EXACT.get(func, func)(*args, **(kwargs or {}))


def _addmm(bias: torch.Tensor, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return exact_linear(states, weight.T, bias)


_EXACT: dict[Callable[..., Any], Callable[..., Any]] = {functional.linear: exact_linear, torch.addmm: _addmm}


def use_exact_products(model: nn.Module) -> None:
    """Has every module that holds a matrix, embeddings aside, compute products by `exact_linear`."""
    for module in model.modules():
        holds = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
        if holds and not isinstance(module, nn.Embedding):
            module.forward = partial(_exactly, module.forward)


def _exactly(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with _ExactProducts():
        return forward(*args, **options)
