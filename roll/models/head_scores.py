"""Log-probs and entropy of a language model's head, without the logits of all positions at once.

The vocabulary is taken in tiles: logits of all positions over some columns exist, are reduced to a few numbers per
position and thrown away; the backward pass computes them again. A tile's rows of the weight's gradient are one matrix
product over all positions, rounded once, so that no sum over parts of a batch is rounded to bf16 and nothing of the
weight's size is held beside the gradient itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Bend:
    """What happens to the head's logits before the softmax."""

    temperature: float = 1.0
    softcap: float | None = None

    def logits(self, raw: torch.Tensor) -> torch.Tensor:
        logits = raw.float()
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits / self.temperature if self.temperature != 1 else logits

    def slope_(self, slope: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """In place: the gradient of the bent logits to that of the raw ones."""
        if self.softcap is not None:
            slope.mul_(1 - (logits * (self.temperature / self.softcap)) ** 2)
        return slope.div_(self.temperature) if self.temperature != 1 else slope


@dataclass(frozen=True)
class Tiling:
    """`columns` of the vocabulary at a time; the entropy costs one product per logit."""

    columns: int
    bend: Bend
    entropy: bool


def head_scores(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, tiling: Tiling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target, and the entropy of the distribution (zeros unless asked for). hidden [N, H], weight
    [V, H], targets [N] -> fp32 [N] each."""
    log_probs, entropy = _HeadScores.apply(hidden, weight, bias, targets, tiling)  # type: ignore[misc]
    return log_probs, entropy


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        tiling: Tiling,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        largest = hidden.new_full((len(targets),), torch.finfo(torch.float32).min, dtype=torch.float32)
        total, weighted, of_target = hidden.new_zeros((3, len(targets)), dtype=torch.float32)
        for span in _spans(weight, tiling):
            logits = _logits(hidden, weight, bias, span, tiling)
            before, largest = largest, torch.maximum(largest, logits.amax(1))
            local, inside = _within(targets, span)
            of_target = torch.where(inside, logits.gather(1, local[:, None])[:, 0], of_target)
            shrink = before - largest
            exponentials = logits.sub_(largest[:, None]).exp()
            weighted = (weighted + shrink * total) * shrink.exp()  # the sum of exp(x - largest) (x - largest)
            total = total * shrink.exp() + exponentials.sum(1)
            if tiling.entropy:
                weighted += exponentials.mul_(logits).sum(1)
            del logits, exponentials  # or they would be there beside those of the next tile
        log_total = total.log()
        entropy = log_total - weighted / total if tiling.entropy else torch.zeros_like(total)
        ctx.save_for_backward(hidden, weight, bias, targets, largest + log_total, entropy)
        ctx.tiling = tiling
        return of_target - largest - log_total, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None, None]:
        hidden, weight, bias, targets, log_total, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = gradients
        tiling: Tiling = ctx.tiling
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        hidden_gradient = torch.zeros_like(hidden, dtype=torch.float32) if wants_hidden else None
        weight_gradient = torch.empty_like(weight) if wants_weight else None
        bias_gradient = torch.empty_like(bias) if wants_bias else None
        for span in _spans(weight, tiling):
            logits = _logits(hidden, weight, bias, span, tiling)
            log_probs = logits - log_total[:, None]
            # d log p(target) / d x = [target] - p;  d entropy / d x = -p (log p + entropy)
            slope = log_probs.exp()
            if tiling.entropy:
                log_probs.add_(entropy[:, None]).mul_(of_entropy[:, None])
                slope.mul_(log_probs.add_(of_log_prob[:, None])).neg_()
            else:
                slope.mul_(-of_log_prob[:, None])
            local, inside = _within(targets, span)
            slope.scatter_add_(1, local[:, None], torch.where(inside, of_log_prob, 0.0)[:, None])
            slope = tiling.bend.slope_(slope, logits).to(weight.dtype)
            del logits, log_probs  # or they would be there beside those of the next tile
            if hidden_gradient is not None:
                hidden_gradient += _fp32_product(slope, weight[span])
            if weight_gradient is not None:
                torch.mm(slope.T, hidden, out=weight_gradient[span])
            if bias_gradient is not None:
                bias_gradient[span] = slope.sum(0)
        rounded = None if hidden_gradient is None else hidden_gradient.to(hidden.dtype)
        return rounded, weight_gradient, bias_gradient, None, None


def _spans(weight: torch.Tensor, tiling: Tiling) -> Iterator[slice]:
    for start in range(0, len(weight), tiling.columns):
        yield slice(start, min(start + tiling.columns, len(weight)))


def _logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, span: slice, tiling: Tiling
) -> torch.Tensor:
    """Those of all positions over the columns of a tile, in fp32; the same in both passes."""
    return tiling.bend.logits(functional.linear(hidden, weight[span], None if bias is None else bias[span]))


def _within(targets: torch.Tensor, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's column in the tile (any, where it is in another) and whether it is there."""
    local = targets - span.start
    last = span.stop - span.start - 1
    return local.clamp(0, last), (local >= 0) & (local <= last)


def _fp32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, not rounded to the factors' dtype."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)  # pyright: ignore[reportCallIssue]
    return a.float() @ b.float()
