"""Experts of a mixture whose result for a token depends on that token and on nothing else, to the last bit.

How many tokens choose an expert depends on the other rows, and matrix products of few rows round in another way than
those of many. So the tokens of each expert are filled up with zeros to a number that no kernel has a remainder of, and
a token's shares are added in the order in which its router names its experts.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from roll.models.exact.products import exact_linear
from roll.models.exact.sizes import WHOLE, multiple_of_tokens
from roll.models.experts.ranks import experts_of, whole_shape


def use_exact_experts(model: PreTrainedModel) -> str | None:
    """Has the model compute its experts by `exact_experts`. Returns why it cannot; None if it does, or has none."""
    found = experts_of(model)
    names = {name for name, _ in found}
    if others := [name for name, _ in model.named_modules() if name.endswith(".experts") and name not in names]:
        return f"{others[0]} has experts in a form of their own"
    for name, experts in found:
        down: Any = experts.down_proj
        inner = whole_shape(down)[1 if experts.is_transposed else 2]
        for what, width in (("experts", experts.num_experts), ("numbers in an expert", inner)):
            if int(width) % WHOLE:  # type: ignore[call-overload]
                return f"{name} has {width} {what}, which is not a multiple of {WHOLE}"
        experts.forward = partial(exact_experts, experts)
    return None


def exact_experts(experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """`hidden` [N, H], as many rows as an exact pass has, through the experts `chosen` [N, k], each times its share
    [N, k], and summed: [N, H]. `experts`: a module that transformers decorates with use_experts_implementation."""
    num_tokens, top_k = chosen.shape
    by_expert, order = chosen.flatten().sort(stable=True)
    counts = by_expert.bincount(minlength=experts.num_experts)
    filled = counts + -counts % multiple_of_tokens(hidden.device)
    # The rows of an expert move back by the fillers of the experts before it.
    fillers = (filled - counts).cumsum(0) - (filled - counts)
    at = torch.arange(len(order), device=hidden.device) + fillers[by_expert]
    source = torch.full((int(filled.sum()),), num_tokens, device=hidden.device)
    source[at] = order // top_k
    rows = functional.pad(hidden, (0, 0, 0, 1))[source]  # the row behind the last one is zeros
    sizes = filled.tolist()
    if experts.has_gate:
        inner = experts._apply_gate(_products(experts, "gate_up_proj", rows, sizes))
    else:
        inner = experts.act_fn(_products(experts, "up_proj", rows, sizes))
    outer = _products(experts, "down_proj", inner, sizes)
    places = torch.empty_like(order)
    places[order] = at
    wide = torch.promote_types(hidden.dtype, torch.float32)
    parts = outer[places].to(wide).unflatten(0, chosen.shape) * shares.to(wide)[..., None]
    total = parts[:, 0]
    for number in range(1, top_k):  # in this order, whatever kernel a sum would take
        total = total + parts[:, number]
    return total.to(hidden.dtype)


def _products(experts: Any, name: str, rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Rows [P, in], `sizes` of them for each expert, times its matrix, plus its bias: [P, out]."""
    matrices = _matrix(experts, name).unbind()  # whose backward pass stacks: indexing would make a whole one for each
    biases = getattr(experts, f"{name}_bias").unbind() if experts.has_bias else (None,) * len(matrices)
    return torch.cat(
        [
            exact_linear(part, matrix, bias)
            for part, matrix, bias in zip(rows.split(sizes), matrices, biases, strict=True)
            if len(part)
        ]
    )


def _matrix(experts: Any, name: str) -> torch.Tensor:
    """The matrices of all experts [experts, out, in]."""
    stacked: torch.Tensor = getattr(experts, name)
    return stacked.transpose(1, 2) if experts.is_transposed else stacked
