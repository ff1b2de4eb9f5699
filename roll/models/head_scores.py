"""Scores of tokens by a language model's head, without the logits of all positions at once: log-probs, entropy, the
likeliest tokens.

The vocabulary is taken in tiles: logits of all positions over some columns exist, are reduced to a few numbers per
position and thrown away; the backward pass computes them again. A tile's rows of the weight's gradient are one matrix
product over all positions, rounded once, so that no sum over parts of a batch is rounded to bf16 and nothing of the
weight's size is held beside the gradient itself.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from roll.configs.sections.model import LOGITS_PER_CHUNK, LOGITS_PER_CHUNK_ON_GPUS
from roll.platforms.table import platform_of

# The arithmetic of one tile: from the products of hidden states and head over some columns of the vocabulary, what all
# positions learn of them, and their gradient. torch.compile makes one or two passes over a tile of each.


@dataclass(frozen=True)
class LogitTransform:
    """Transform of the products of hidden states and head before the softmax: factor, soft cap, temperature."""

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


PLAIN = LogitTransform()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: fp32, or float64 for what is given in it."""
    return torch.promote_types(dtype, torch.float32)


class TileSums(NamedTuple):
    """Sums over the tiles so far, one number per position.

    - `largest`: the largest logit x
    - `total`: sum of exp(x - largest)
    - `weighted`: the same sum, weighted with x - largest
    """

    largest: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor | None

    @property
    def log_total(self) -> torch.Tensor:
        return self.largest + self.total.log()

    @staticmethod
    def none(hidden: torch.Tensor, weighted: bool) -> TileSums:
        dtype = wide(hidden.dtype)
        zeros = hidden.new_zeros(len(hidden), dtype=dtype)
        least = torch.full_like(zeros, torch.finfo(dtype).min)
        return TileSums(least, zeros, zeros if weighted else None)


def add_tile(sums: TileSums, raw: torch.Tensor, transform: LogitTransform = PLAIN) -> TileSums:
    """The sums with the columns of one more tile."""
    logits = transform.logits(raw)
    largest = torch.maximum(sums.largest, logits.amax(1))
    shrink = sums.largest - largest
    shifted = logits - largest[:, None]
    exponentials = shifted.exp_() if sums.weighted is None else shifted.exp()
    weighted = None
    if sums.weighted is not None:
        weighted = (sums.weighted + shrink * sums.total) * shrink.exp() + shifted.mul_(exponentials).sum(1)
    return TileSums(largest, sums.total * shrink.exp() + exponentials.sum(1), weighted)


class Known(NamedTuple):
    """Results of the forward pass, one number per position: log of the sum of exp(logits), log-prob of all tokens but
    the requested ones, entropy."""

    log_total: torch.Tensor
    log_rest: torch.Tensor | None
    entropy: torch.Tensor | None


class Pulls(NamedTuple):
    """Gradients of the loss: by log-probs, in columns like theirs, and, one number per position, by the entropy. None:
    the loss has no such term."""

    tokens: torch.Tensor | None
    entropy: torch.Tensor | None


def tile_slope(
    raw: torch.Tensor,
    known: Known,
    pulls: Pulls,
    tokens: tuple[torch.Tensor, torch.Tensor],
    transform: LogitTransform,
) -> torch.Tensor:
    """The gradient of a tile's products, in their dtype. `tokens`: columns [N, m] of the requested tokens, and whether
    they are in the tile. With p the probabilities, x the transformed logits, r the rest's probability:

    d log p_t / dx = [t] - p;  d log r / dx = p / r - p outside of the requested, -p inside;
    d H / dx = -p (log p + H).
    """
    logits = transform.logits(raw)
    log_probs = logits - known.log_total[:, None]
    probs = log_probs.exp_() if pulls.entropy is None else log_probs.exp()
    factor: torch.Tensor | None = None
    if pulls.entropy is not None and known.entropy is not None:
        factor = (log_probs + known.entropy[:, None]).mul_(-pulls.entropy[:, None])
    if pulls.tokens is not None:
        per_row = -pulls.tokens.sum(1)[:, None]
        factor = per_row if factor is None else factor.add_(per_row)
    slope = torch.zeros_like(probs) if factor is None else probs.mul_(factor)
    columns, inside = tokens
    if pulls.tokens is not None:
        slope = _add_at(slope, columns, torch.where(inside, pulls.tokens[:, : columns.shape[1]], 0.0))
        if known.log_rest is not None:
            rest = left_out(logits - (known.log_total + known.log_rest)[:, None], columns, inside)
            slope = slope.add_(rest.exp_().mul_(pulls.tokens[:, -1:]))
    return transform.slope_(slope, logits).to(raw.dtype)


def _add_at(slope: torch.Tensor, columns: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
    if columns.shape[1] == 1 and torch.compiler.is_compiling():  # a scatter would be a pass of its own
        return slope + torch.where(torch.arange(slope.shape[1], device=slope.device) == columns, pull, 0.0)
    return slope.scatter_add_(1, columns, pull)


@cache
def arithmetic(compiled: bool) -> tuple[Callable[..., TileSums], Callable[..., torch.Tensor]]:
    """`add_tile` and `tile_slope`, by torch.compile if wanted: for tiles of any size."""
    if not compiled:
        return add_tile, tile_slope
    allow_many_forms()
    compile_it: Any = torch.compile
    return compile_it(add_tile, dynamic=True), compile_it(tile_slope, dynamic=True)


_FORMS = 64  # of one function; torch's own limit of 8 is passed by what losses ask for times temperatures and dtypes


def allow_many_forms() -> None:
    """Lets a function be compiled once for each form of its arguments that a run has. Past torch's limit it would run
    uncompiled, slower and with a warning in the log of its rank alone."""
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _FORMS)


WIDE = 128  # columns of a tile of a GPU's matrix product
_ALIGNED = 8  # columns of 16 bytes in bf16: with others cuBLAS loads single numbers


@dataclass(frozen=True)
class TeacherHead:
    """The rows of a teacher's head for the tokens that both have, on the way to a student: fp32 in host memory.
    `dtype`: in which it computes."""

    weight: np.ndarray  # [V, H of the teacher]
    bias: np.ndarray | None
    transform: LogitTransform
    dtype: torch.dtype


class Product(NamedTuple):
    """A factor of the logits: states [N, H] and the weight that they meet, [V, H]."""

    states: torch.Tensor
    weight: torch.Tensor


def _no_rows(rows: torch.Tensor, weight: torch.Tensor) -> int:
    return 0


@dataclass(frozen=True)
class HeadForm:
    """How a head multiplies. `columns`: of a tile, whatever the number of positions; None: as many as fit. `missing`:
    the number of zeros to put behind rows [N, ...] for a weight."""

    columns: int | None = None
    linear: Callable[..., torch.Tensor] = functional.linear
    missing: Callable[[torch.Tensor, torch.Tensor], int] = _no_rows


PLAIN_FORM = HeadForm()


@dataclass(frozen=True)
class HeadRequest:
    """Request for scores: which of them, and how: `tile_elements` logits at a time, by torch.compile if `compiled`.
    Tiles are a `multiple` of columns wide where so many fit, or as wide as the `form` says."""

    tile_elements: int
    transform: LogitTransform = PLAIN
    entropy: bool = False
    top_k: int = 0
    compiled: bool = False
    multiple: int = 1
    form: HeadForm = PLAIN_FORM
    kernel: str = "torch"  # of another package, for what it can do

    @classmethod
    def on(cls, kind: str, configured: int | None, transform: LogitTransform = PLAIN) -> HeadRequest:
        """Return a request with tiles of the size that suits a device of this kind, or is configured.

        A tile in a CPU's cache is the fastest there. On a GPU 2^23 would be 254 tiles of 599 columns for 14,000
        positions and 152k tokens, of launches mostly, and of products that cannot load 16 bytes at once.
        """
        if kind == "cpu":
            return cls(configured or LOGITS_PER_CHUNK, transform)
        return cls(configured or LOGITS_PER_CHUNK_ON_GPUS, transform, multiple=WIDE)

    def columns(self, positions: int) -> int:
        """Columns of the vocabulary per tile.

        Example: 2^26 logits of 14,000 positions are 4793 columns, and 4736 as a multiple of 128.
        """
        if self.form.columns is not None:
            return self.form.columns
        columns = max(1, self.tile_elements // max(positions, 1))
        step = self.multiple if columns >= self.multiple else min(self.multiple, _ALIGNED)
        return columns - columns % step if columns >= step else columns


class HeadScores(NamedTuple):
    """Scores of the language-model head, in fp32, at N positions.

    - `log_probs`: [N], or [N, m + 1] for tokens [N, m]: the last is that of all other tokens together
    - `entropy`: [N]
    - `top_log_probs`, `top_ids`: [N, k + 1] and [N, k], largest first, and all other tokens together; no gradient
    - `divergence`: from teacher targets (`roll/features/teachers/targets.py`), [N]
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor | None = None
    top_log_probs: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    divergence: torch.Tensor | None = None

    def first(self, count: int) -> HeadScores:
        """The scores of so many positions."""
        return HeadScores(*(None if part is None else part[:count] for part in self))  # type: ignore[arg-type]


def head_scores(
    products: Sequence[Product],
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    ask: HeadRequest,
) -> HeadScores:
    """The logits are the sum of the `products`, one but for a head with a low-rank adapter, and the bias. `targets`,
    tokens [N] or [N, m], are those whose log-probs are wanted.

    Example, with logits (2, 1, 0): targets [0] gives log-prob -.408, entropy .832, top_k=2 ids (0, 1).
    """
    if ask.kernel != "torch" and (log_probs := kernel_log_probs(products, bias, targets, ask)) is not None:
        return HeadScores(log_probs)
    flat = [tensor for product in products for tensor in product]
    outputs = _HeadScores.apply(ask, targets, bias, *flat)  # type: ignore[misc]
    return HeadScores(*outputs)


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        ask: HeadRequest,
        targets: torch.Tensor,
        bias: torch.Tensor | None,
        *flat: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        add_tile, _ = arithmetic(ask.compiled)
        sums = TileSums.none(flat[0], weighted=ask.entropy)
        ids = targets if targets.dim() == 2 else targets[:, None]
        of_ids = flat[0].new_zeros(ids.shape, dtype=sums.total.dtype)
        top: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        rest: torch.Tensor | None = None
        for span in _spans(flat[1], ask.columns(len(targets))):
            raw = _raw(flat, bias, span, ask)
            local, inside = _within(ids, span)
            of_ids = torch.where(inside, ask.transform.logits(raw.gather(1, local)), of_ids)
            if targets.dim() == 2:
                more = left_out(ask.transform.logits(raw), local, inside).logsumexp(1)
                rest = more if rest is None else torch.logaddexp(rest, more)
            if ask.top_k:
                top = _likeliest(top, ask.transform.logits(raw), span, ask.top_k)
            sums = add_tile(sums, raw, ask.transform)
            del raw  # or it would be there beside that of the next tile
        log_total = sums.log_total
        entropy = None if sums.weighted is None else sums.total.log() - sums.weighted / sums.total
        top_log_probs = top_ids = None
        if top is not None:
            values, top_ids, behind = top
            top_log_probs = with_rest(values, behind, log_total)
            ctx.mark_non_differentiable(top_log_probs, top_ids)
        # No view: FSDP2 warns of a module that gives one.
        log_probs = of_ids[:, 0] - log_total if rest is None else with_rest(of_ids, rest, log_total)
        log_rest = None if rest is None else log_probs[:, -1].clone()
        ctx.request = ask
        ctx.save_for_backward(log_total, log_rest, entropy, ids, bias, *flat)
        return log_probs, entropy, top_log_probs, top_ids

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        log_total, log_rest, entropy, ids, bias, *flat = ctx.saved_tensors
        known = Known(log_total, log_rest, entropy)
        of_log_probs, of_entropy, *_ = gradients
        if of_log_probs is not None and of_log_probs.dim() == 1:
            of_log_probs = of_log_probs[:, None]
        pulls = Pulls(of_log_probs, of_entropy)
        grown = _Gradients(flat, bias, ctx.needs_input_grad[2:])
        ask: HeadRequest = ctx.request
        _, tile_slope = arithmetic(ask.compiled)
        for span in _spans(flat[1], ask.columns(len(ids))):
            raw = _raw(flat, bias, span, ask)
            slope = tile_slope(raw, known, pulls, _within(ids, span), ask.transform)
            del raw  # or it would be there beside that of the next tile
            grown.add(slope, span)
        return None, None, *grown.rounded()


class _Gradients:
    """Gradients of the bias and of the products' factors, as far as they are needed. Those of hidden states are summed
    in fp32."""

    def __init__(self, flat: Sequence[torch.Tensor], bias: torch.Tensor | None, wanted: Sequence[bool]):
        self._flat, self._dtype = flat, wide(flat[0].dtype)
        self._bias = torch.empty_like(bias) if bias is not None and wanted[0] else None
        self._gradients: list[torch.Tensor | None] = []
        for i, tensor in enumerate(flat):
            is_weight = i % 2 == 1
            made = torch.empty_like(tensor) if is_weight else torch.zeros_like(tensor, dtype=self._dtype)
            self._gradients.append(made if wanted[1 + i] else None)

    def add(self, slope: torch.Tensor, span: slice) -> None:
        for i in range(0, len(self._flat), 2):
            states, weight = self._gradients[i], self._gradients[i + 1]
            if states is not None:
                states += _wide_product(slope, self._flat[i + 1][span], self._dtype)
            if weight is not None:
                torch.mm(slope.T, self._flat[i], out=weight[span])
        if self._bias is not None:
            self._bias[span] = slope.sum(0)

    def rounded(self) -> Iterator[torch.Tensor | None]:
        yield self._bias
        for tensor, gradient in zip(self._flat, self._gradients, strict=True):
            yield None if gradient is None else gradient.to(tensor.dtype)


def common(
    products: Sequence[Product], bias: torch.Tensor | None, vocab_size: int
) -> tuple[Sequence[Product], torch.Tensor | None]:
    """A head's rows for the tokens that both models have; beyond them are rows that stand for no token."""
    if len(products[0].weight) <= vocab_size:
        return products, bias
    cut = [Product(product.states, product.weight[:vocab_size]) for product in products]
    return cut, None if bias is None else bias[:vocab_size]


def pack_top_k_targets(log_probs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The lesson that log-probs [n, k + 1] and ids [n, k] are, [n, 2 k + 1]."""
    return torch.cat((log_probs, ids.to(log_probs.dtype)), 1)


def raw_logits(products: Sequence[Product], bias: torch.Tensor | None, ask: HeadRequest) -> torch.Tensor:
    """The products of all positions, in the tiles that `head_scores` takes: [N, V] in their dtype."""
    flat = [tensor for product in products for tensor in product]
    return torch.cat([_raw(flat, bias, span, ask) for span in _spans(flat[1], ask.columns(len(flat[0])))], 1)


def log_probs_of_logits(raw: torch.Tensor, targets: torch.Tensor, ask: HeadRequest) -> torch.Tensor:
    """Log-probs of targets [N] by logits that are there, raw [N, V]: the arithmetic of `head_scores`."""
    sums = TileSums.none(raw, weighted=False)
    of_ids = torch.zeros_like(sums.total)
    for span in _spans(raw.T, ask.columns(len(raw))):
        tile = raw[:, span].contiguous()
        local, inside = _within(targets, span)
        of_ids = torch.where(inside, ask.transform.logits(tile.gather(1, local[:, None]))[:, 0], of_ids)
        sums = add_tile(sums, tile, ask.transform)
    return of_ids - sums.log_total


def _spans(weight: torch.Tensor, columns: int) -> Iterator[slice]:
    for start in range(0, len(weight), columns):
        yield slice(start, min(start + columns, len(weight)))


def _raw(flat: Sequence[torch.Tensor], bias: torch.Tensor | None, span: slice, ask: HeadRequest) -> torch.Tensor:
    """The products of all positions over the columns of a tile; the same in both passes."""
    raw = ask.form.linear(flat[0], flat[1][span], _part(bias, span))
    for i in range(2, len(flat), 2):
        raw = raw + ask.form.linear(flat[i], flat[i + 1][span])
    return raw


def _part(bias: torch.Tensor | None, span: slice) -> torch.Tensor | None:
    """A tile's biases. A token that a bias of -inf rules out has a finite one instead, far below all others: its
    probability is 0 as well, and 0 times a finite logit is no nan in the entropy."""
    return None if bias is None else bias[span].clamp(min=max(_RULED_OUT, torch.finfo(bias.dtype).min))


_RULED_OUT = -1e30  # finite at any temperature, too


def _within(tokens: torch.Tensor, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens' columns in the tile (any, where they are in another) and whether they are there."""
    local = tokens - span.start
    last = span.stop - span.start - 1
    return local.clamp(0, last), (local >= 0) & (local <= last)


def left_out(logits: torch.Tensor, columns: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """The logits with -inf at these columns, as far as they are `inside`."""
    return logits.scatter_add(1, columns, torch.where(inside, -math.inf, 0.0).to(logits.dtype))


def with_rest(logits: torch.Tensor, rest: torch.Tensor, log_total: torch.Tensor) -> torch.Tensor:
    """Log-probs of tokens [N, m], and of all others together, of which 1 - the sum of probabilities may have no digits.
    `rest`, `log_total`: log of the sum of exp(logits) over the others, and over all. A rest of 0 counts as the smallest
    normal number."""
    rest = torch.maximum(rest, log_total + math.log(torch.finfo(rest.dtype).tiny))
    return torch.cat((logits, rest[:, None]), 1) - log_total[:, None]


def _likeliest(
    before: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None, logits: torch.Tensor, span: slice, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k largest logits so far, their tokens, and the log of the sum of exp of all other logits."""
    values, columns = logits.topk(min(k, logits.shape[1]))
    tokens, rest = columns + span.start, logits.scatter(1, columns, -math.inf).logsumexp(1)
    if before is not None:
        values, tokens = torch.cat((before[0], values), 1), torch.cat((before[1], tokens), 1)
        largest, places = values.topk(min(k, values.shape[1]))
        others = values.scatter(1, places, -math.inf)
        rest = torch.cat((others, before[2][:, None], rest[:, None]), 1).logsumexp(1)
        values, tokens = largest, tokens.gather(1, places)
    return values, tokens, rest


def _wide_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """a @ b, not rounded to the factors' dtype."""
    if a.dtype != dtype and platform_of(a.device).has_wide_products:
        return torch.mm(a, b, out_dtype=dtype)  # pyright: ignore[reportCallIssue]
    return a.to(dtype) @ b.to(dtype)


# Other packages' kernels for the log-probs of a head. They know no entropy, no adapters and no temperature: what they
# cannot do, `head_scores` does.


def kernel_log_probs(
    products: Sequence[Product], bias: torch.Tensor | None, targets: torch.Tensor, ask: HeadRequest
) -> torch.Tensor | None:
    """Log-probs of targets [N] in fp32, by the package of the request; None if it cannot compute what is asked."""
    transform = ask.transform
    if (
        ask.entropy
        or ask.top_k
        or len(products) > 1
        or targets.dim() > 1
        or (transform.temperature, transform.factor) != (1, 1)
    ):
        return None
    cut_cross_entropy = importlib.import_module(ask.kernel)
    # cce_exact: in its other forms it leaves out gradients that are small, and adds up in bf16.
    loss = cut_cross_entropy.linear_cross_entropy(
        products[0].states,
        products[0].weight,
        targets,
        bias=bias,
        softcap=transform.softcap,
        reduction="none",
        impl="cce_exact",
    )
    return -loss.float()
