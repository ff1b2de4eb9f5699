"""Attention of rows that share prefixes (`roll/types/forest.py`), without a mask and without a pair that does not see
each other.

The tokens of a node see each other causally; its descendants, which are one slice, see all of it. Each is a call of a
flash kernel, and a token's results of several calls are merged by their log-sum-exp, as Ring Attention merges those of
several devices (arXiv 2310.01889). Backward, every call gets the merged output and log-sum-exp, so its probabilities
are the final ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from roll.types.forest import Forest

_forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def tree_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, forest: Forest, scaling: float | None = None
) -> torch.Tensor:
    """Attention of the N tokens of a forest on a CPU. Query [1, heads, N, D] with keys and values [1, groups, N, D] ->
    [1, N, heads, D]. Values may have another width than keys."""
    width = value.shape[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    wide = max(width, query.shape[-1])  # the kernel takes one width
    query, key, value = (functional.pad(part, (0, wide - part.shape[-1])) for part in (query, key, value))
    output: torch.Tensor = _Parts.apply(query, key, value, forest, scale)  # type: ignore[assignment]
    return output[..., :width]


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, forest: Forest, scale: float
    ) -> torch.Tensor:
        _, heads, tokens, width = query.shape
        whole = query.new_empty(1, tokens, heads, width, dtype=_sums(query)).transpose(1, 2)
        lse = whole.new_empty(1, heads, tokens)
        for start, stop, end, is_root in forest.nodes:
            # A node's tokens are keys for themselves (causal), and for its descendants. These are right behind it in
            # the order and see every one of them (not causal).
            for first, last, causal in ((start, stop, True), (stop, end, False)):
                if first == last:
                    continue
                span = slice(start, stop)
                out, part = _forward(
                    query[:, :, first:last], key[:, :, span], value[:, :, span], 0.0, causal, scale=scale
                )
                into, sums = whole[:, :, first:last], lse[:, :, first:last]
                if is_root:  # nothing is there yet: what a token has from its ancestors comes in their order
                    into.copy_(out)
                    sums.copy_(part)
                    continue
                # A token's attention is one softmax over all its ancestors, computed in parts. Each part is weighted by
                # its share of the sum of exponentials: exp(lse of the part - lse of all so far).
                total = torch.logaddexp(sums, part)
                into.mul_((sums - total).exp_()[..., None]).add_(out * (part - total).exp_()[..., None])
                sums.copy_(total)
        output = whole.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.forest, ctx.scale = forest, scale
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, lse = ctx.saved_tensors
        gradient = gradient.contiguous().transpose(1, 2)
        pulls = tuple(torch.zeros_like(part, dtype=_sums(part)) for part in (query, key, value))
        for start, stop, end, _ in ctx.forest.nodes:
            span = slice(start, stop)
            for first, last, causal in ((start, stop, True), (stop, end, False)):
                if first == last:
                    continue
                seen_by = slice(first, last)
                gradients = _backward(
                    gradient[:, :, seen_by], query[:, :, seen_by], key[:, :, span], value[:, :, span],
                    output[:, :, seen_by], lse[:, :, seen_by], 0.0, causal, scale=ctx.scale,
                )  # fmt: skip
                for pull, part, where in zip(pulls, gradients, (seen_by, span, span), strict=True):
                    pull[:, :, where].add_(part)
        return *(pull.to(query.dtype) for pull in pulls), None, None


def _sums(part: torch.Tensor) -> torch.dtype:
    """Results of several calls add up in fp32 at least, and are rounded once."""
    return torch.promote_types(part.dtype, torch.float32)
