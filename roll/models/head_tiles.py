"""The arithmetic of one tile of logits: what all positions learn of some columns of the vocabulary, and the gradient of
these. Functions of tensors alone, which torch.compile makes one pass over a tile each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class Bend:
    """What happens to the products of hidden states and head before the softmax: factor, soft cap, temperature."""

    temperature: float = 1.0
    softcap: float | None = None
    factor: float = 1.0

    def logits(self, raw: torch.Tensor) -> torch.Tensor:
        logits = raw.to(wide(raw.dtype))
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits / self.temperature if self.temperature != 1 else logits

    def slope_(self, slope: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Turns the gradient of the transformed logits into that of the raw ones, in place."""
        if self.softcap is not None:
            slope.mul_(1 - (logits * (self.temperature / self.softcap)) ** 2)
        scale = self.factor / self.temperature
        return slope.mul_(scale) if scale != 1 else slope


PLAIN = Bend()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: fp32, or float64 for what is given in it."""
    return torch.promote_types(dtype, torch.float32)


class Sums(NamedTuple):
    """Sums over the tiles so far, one number per position.

    - `largest`: the largest logit x
    - `total`: sum of exp(x - largest)
    - `weighted`: the same sum, weighted with x - largest
    - `difference`: the same sum, weighted with x - y, where y are another model's logits
    """

    largest: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor | None
    difference: torch.Tensor | None

    @property
    def log_total(self) -> torch.Tensor:
        return self.largest + self.total.log()

    @staticmethod
    def none(hidden: torch.Tensor, weighted: bool, difference: bool) -> Sums:
        dtype = wide(hidden.dtype)
        zeros = hidden.new_zeros(len(hidden), dtype=dtype)
        least = torch.full_like(zeros, torch.finfo(dtype).min)
        return Sums(least, zeros, zeros if weighted else None, zeros if difference else None)


def add_tile(sums: Sums, logits: torch.Tensor, others: torch.Tensor | None) -> Sums:
    """The sums with the columns of one more tile. `others`: the other model's logits."""
    largest = torch.maximum(sums.largest, logits.amax(1))
    shrink = sums.largest - largest
    shifted = logits - largest[:, None]
    needs_both = sums.weighted is not None or sums.difference is not None
    exponentials = shifted.exp() if needs_both else shifted.exp_()
    weighted = difference = None
    if sums.weighted is not None:
        weighted = (sums.weighted + shrink * sums.total) * shrink.exp() + shifted.mul_(exponentials).sum(1)
    if sums.difference is not None and others is not None:
        difference = sums.difference * shrink.exp() + torch.sub(logits, others, out=shifted).mul_(exponentials).sum(1)
    return Sums(largest, sums.total * shrink.exp() + exponentials.sum(1), weighted, difference)


class Known(NamedTuple):
    """What the forward pass found, one number per position: log of the sum of exp(logits), of the other model's,
    entropy, divergence of the model from the other."""

    log_total: torch.Tensor
    other_log_total: torch.Tensor | None
    entropy: torch.Tensor | None
    reverse: torch.Tensor | None


class Pulls(NamedTuple):
    """Gradients of the loss, one number per position: by the log-probs of tokens (summed), the entropy, and the
    divergences. None: the loss has no such term."""

    tokens: torch.Tensor | None
    entropy: torch.Tensor | None
    forward: torch.Tensor | None
    reverse: torch.Tensor | None


def tile_slope(logits: torch.Tensor, others: torch.Tensor | None, known: Known, pulls: Pulls) -> torch.Tensor:
    """The gradient of a tile's bent logits x, but for the tokens' own columns. With p and q the probabilities:

    d log p_t / dx = [t] - p;  d H / dx = -p (log p + H);  d KL(q | p) / dx = p - q;
    d KL(p | q) / dx = p (log p - log q - KL(p | q)).
    """
    log_probs = logits - known.log_total[:, None]
    needs_both = pulls.entropy is not None or pulls.reverse is not None
    probs = log_probs.exp() if needs_both else log_probs.exp_()
    factor: torch.Tensor | None = None
    per_row = _sum(None if pulls.tokens is None else -pulls.tokens, pulls.forward)
    if pulls.entropy is not None and known.entropy is not None:
        factor = (log_probs + known.entropy[:, None]).mul_(-pulls.entropy[:, None])
    other_log_probs = None
    if others is not None and known.other_log_total is not None:
        other_log_probs = others - known.other_log_total[:, None]
    if pulls.reverse is not None and known.reverse is not None and other_log_probs is not None:
        ratio = (log_probs - other_log_probs).sub_(known.reverse[:, None]).mul_(pulls.reverse[:, None])
        factor = ratio if factor is None else factor.add_(ratio)
    if per_row is not None:
        factor = per_row[:, None] if factor is None else factor.add_(per_row[:, None])
    slope = torch.zeros_like(probs) if factor is None else probs.mul_(factor)
    if pulls.forward is not None and other_log_probs is not None:
        slope.sub_(other_log_probs.exp_().mul_(pulls.forward[:, None]))
    return slope


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


@cache
def arithmetic(compiled: bool) -> tuple[Callable[..., Sums], Callable[..., torch.Tensor]]:
    """`add_tile` and `tile_slope`, by torch.compile if wanted: for tiles of any size."""
    if not compiled:
        return add_tile, tile_slope
    compile_it: Any = torch.compile
    return compile_it(add_tile, dynamic=True), compile_it(tile_slope, dynamic=True)
