"""Matrix products and sums whose result for a row depends on that row and on nothing else, to the last bit.

On CPUs they are torch's, with as many rows as `sizes.py` says. On GPUs no number of rows has the kernel of another, so
products are those of `kernels.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.modeling_layers import GradientCheckpointingLayer

from roll.errors import StrategyError
from roll.models.exact.sizes import HEAD_COLUMNS, WHOLE, multiple_of_tokens
from roll.models.head_scores import HeadForm, Product, log_probs_of_logits, raw_logits
from roll.models.hf import LogProbHead

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
    rows = _products(states.reshape(1, -1, states.shape[-1]), weight.T[None], bias)
    return rows.reshape(*states.shape[:-1], -1)


def _missing_rows(rows: torch.Tensor, weight: torch.Tensor) -> int:
    multiple = multiple_of_tokens(rows.device) * (1 if weight.shape[0] % WHOLE == 0 else WHOLE)
    return -len(rows) % multiple


EXACT_HEAD = HeadForm(HEAD_COLUMNS, exact_linear, _missing_rows)


def exact_logits(head: LogProbHead, hidden: torch.Tensor) -> torch.Tensor:
    """Hidden states [N, H] -> [N, V] of an exact head's products, before its transform."""
    layer: Any = head.lm_head
    product = Product(head.filled(hidden).to(layer.weight.dtype), layer.weight)
    return raw_logits([product], layer.bias, head.request(hidden.device.type))[: len(hidden)]


def exact_log_probs(head: LogProbHead, raw: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs of targets [N] by such products, fp32 [N]: the numbers of the head."""
    request = head.request(raw.device.type, temperature)
    return log_probs_of_logits(head.filled(raw), head.filled(targets), request)[: len(targets)]


def exact_matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of matrices, as torch.matmul."""
    if not by_kernels(left.device):
        return torch.matmul(left, right)
    if left.dim() == 1:
        return exact_matmul(left[None], right)[..., 0, :] if right.dim() > 1 else exact_linear(left, right[None])[0]
    if right.dim() < 3:
        return exact_linear(left, right.T) if right.dim() == 2 else exact_linear(left, right[None])[..., 0]
    lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    batches = (part.expand(*lead, *part.shape[-2:]).flatten(0, -3) for part in (left, right))
    return _products(*batches).unflatten(0, lead)


def _products(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Left [B, M, K] with right [B, K, N], plus bias [N]: [B, M, N]."""
    output: torch.Tensor = _Products.apply(left, right, bias)  # type: ignore[assignment]
    return output


@torch.library.custom_op("roll::exact_product", mutates_args=())
def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The kernel as an operation of torch, which recomputation keeps the results of (`models/recomputation.py`)."""
    return _kernel()(left, right, bias)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        return _product(left, right, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        left, right = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            gradient @ right.mT if wanted[0] else None,
            left.mT @ gradient if wanted[1] else None,
            gradient.sum((0, 1)) if wanted[2] else None,
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
    """Computes products by `exact_linear` and `exact_matmul`."""

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


_EXACT: dict[Callable[..., Any], Callable[..., Any]] = {functional.linear: exact_linear, torch.addmm: _addmm} | (
    dict.fromkeys((torch.matmul, torch.bmm, torch.mm, torch.Tensor.matmul, torch.Tensor.__matmul__), exact_matmul)
)


def use_exact_products(backbone: nn.Module) -> None:
    """Has the layers, and the modules beside them, compute products by `exact_linear`. A layer, not the whole pass:
    checkpointing computes layers again in the backward pass."""
    inside: set[nn.Module] = set()
    for module in backbone.modules():
        has_own = next(module.children(), None) is None or any(True for _ in module.parameters(recurse=False))
        is_beside = has_own and not isinstance(module, nn.Embedding)  # also rotary embeddings, which hold buffers
        if module not in inside and (is_beside or isinstance(module, GradientCheckpointingLayer)):
            module.forward = partial(_exactly, module.forward)
            inside.update(module.modules())


def _exactly(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    states: torch.Tensor = next(part for part in (*args, *options.values()) if isinstance(part, torch.Tensor))
    with _ExactProducts() if by_kernels(states.device) else nullcontext():
        return forward(*args, **options)
