"""Attention whose result for a token depends on the tokens that it sees and on nothing else, to the last bit: not on
other rows, on padding, or on how many tokens of its row are computed at once.

Matrix products round differently for a few rows than for many, and so do sums that are longer or begin elsewhere. So
keys are taken in blocks of fixed size by their positions in the row; a product has at least `BATCHED_FLOOR` queries;
the blocks' sums of exponentials and of values are added one after the other. Blocks that a token does not see add
exact zeros. A whole row and a token beside cached ones go through the same `_blocks`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from roll.errors import StrategyError
from roll.models.exact.products import block_products, block_sums
from roll.models.exact.rows import ExactPass, RowGroup
from roll.models.exact.sizes import BATCHED_FLOOR, BLOCK
from roll.models.sequences.attention import OTHER_FORMS, set_text_attention
from roll.models.sequences.packed_attention import reach

EXACT_ATTENTION = "roll_exact"


def use_exact_attention(model: PreTrainedModel) -> None:
    """Has the model attend by `exact_attention`, which wants an `ExactPass` with every forward pass."""
    if not model._can_set_attn_implementation():
        raise exact_refusal(f"{type(model).__name__} has attention of its own")
    AttentionInterface.register(EXACT_ATTENTION, exact_attention)
    AttentionMaskInterface.register(EXACT_ATTENTION, reach)
    set_text_attention(model, EXACT_ATTENTION)


def exact_refusal(why: str) -> StrategyError:
    return StrategyError(f"exact_log_probs does not work with this model: {why}. Set it to false")


def exact_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: int | torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    exact: ExactPass | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Query [1, heads, N, D] with keys and values [1, groups, N, D] -> [1, N, heads, D]. `attention_mask`: how many
    tokens a token of this layer sees (`reach`), 0 for all of its row. Fillers, behind the rows' tokens, get zeros.
    StrategyError for what this attention does not compute."""
    name = type(module).__name__
    if exact is None or not isinstance(attention_mask, int):
        raise exact_refusal(f"{name} does not say where rows begin")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise exact_refusal(f"{name} looks both ways")
    if forms := [form for form in OTHER_FORMS if kwargs.get(form) is not None]:
        raise exact_refusal(f"{name} computes with {' and '.join(forms)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if exact.cache is not None:
        layer: Any = module.layer_idx
        exact.cache.write(layer, exact, key[0].transpose(0, 1), value[0].transpose(0, 1))
        if exact.is_step:
            return _of_step(query[0].transpose(0, 1), exact, layer, scale, attention_mask)[None], None
    output: torch.Tensor = _WholeRows.apply(query, key, value, exact, scale, attention_mask)  # type: ignore[assignment]
    return output, None


def _of_step(query: torch.Tensor, exact: ExactPass, layer: int, scale: float, window: int) -> torch.Tensor:
    """Query [N, heads, D] of one token per row beside all keys of its row in the cache -> [N, heads, D]."""
    assert exact.cache is not None
    columns = exact.columns
    keys, values = exact.cache.read(layer, columns)
    groups, rows = keys.shape[2], len(columns)
    each = query.shape[1] // groups
    scaled = query[:rows].to(keys.dtype).unflatten(1, (groups, each)) * scale
    scaled = functional.pad(scaled, (0, 0, 0, -each % BATCHED_FLOOR))
    places = torch.arange(len(keys) * BLOCK, device=query.device).view(-1, 1, 1, 1, BLOCK)
    at = columns[:, None, None, None]
    hidden = places > at if not window else (places > at) | (places <= at - window)
    output, _ = _blocks(scaled, keys, values, hidden)
    of_rows = output[:, :, :each].reshape(rows, groups * each, -1).to(query.dtype)
    return functional.pad(of_rows, (0, 0, 0, 0, 0, len(query) - rows))


def _blocks(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled query [R, groups, M, D], M a multiple of `BATCHED_FLOOR`, with keys and values [blocks, R, groups, BLOCK,
    D] -> output [R, groups, M, D] and log-sum-exp [R, groups, M]. `hidden`: what is not seen, as wide as the last
    blocks that it is about."""
    scores = block_products(query, keys.transpose(-1, -2))
    scores[-len(hidden) :].masked_fill_(hidden, -torch.inf)
    largest = scores.amax(-1).amax(0)
    weights = scores.sub_(largest[..., None]).exp_()
    totals, parts = block_sums(weights), block_products(weights, values)
    total, output = totals[0], parts[0]
    for number in range(1, len(parts)):  # in this order, whatever comes behind
        total, output = total + totals[number], output + parts[number]
    return output / total[..., None], largest + total.log()


class _Chunk(NamedTuple):
    """The queries [start, stop) of the rows of a group, and the blocks of keys that they see some of."""

    start: int
    stop: int
    first: int
    last: int

    def hidden(self, times: int, window: int, device: torch.device) -> torch.Tensor:
        """Return the keys that each of the queries, `times` heads of them, does not see: bool [blocks, 1, 1, M, BLOCK].
        Without a window, of the last block alone: a chunk begins where a block does."""
        at = torch.arange(self.start, self.stop, device=device).repeat(times)[:, None]
        first = self.first if window else self.last - 1
        places = torch.arange(first * BLOCK, self.last * BLOCK, device=device).view(-1, 1, 1, 1, BLOCK)
        return (places > at) | (places <= at - window) if window else places > at


def _chunks(width: int, window: int) -> Iterator[_Chunk]:
    for start in range(0, width, BLOCK):
        first = max(start + 1 - window, 0) // BLOCK if window else 0
        yield _Chunk(start, min(start + BLOCK, width), first, start // BLOCK + 1)


@torch.library.custom_op("roll::exact_attention", mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    widths: Sequence[int],
    tokens: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    cells: Sequence[torch.Tensor],
    asking: Sequence[torch.Tensor | None],
    scale: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query, keys and values as `exact_attention` gets them, and the fields of all groups of rows: output [N, heads, D]
    and log-sum-exp [N, heads]. An operation of torch, which recomputation keeps the results of
    (`models/recomputation.py`)."""
    heads, groups, num_tokens = query.shape[1], key.shape[1], query.shape[2]
    output = query.new_zeros(num_tokens, heads, value.shape[-1])
    sums = query.new_zeros(num_tokens, heads, dtype=_wide(query))
    for group in map(RowGroup, widths, tokens, places, cells, asking):
        queries = _queries(query, group, groups, scale)
        keys, values = _in_blocks(key, group), _in_blocks(value, group)
        outputs, of_sums = [], []
        for chunk in _chunks(group.width, window):
            part = queries[..., chunk.start : chunk.stop, :].flatten(2, 3)
            span = slice(chunk.first, chunk.last)
            hidden = chunk.hidden(heads // groups, window, query.device)
            attended, lse = _blocks(part, keys[span], values[span], hidden)
            shape = (heads // groups, chunk.stop - chunk.start)
            outputs.append(attended.unflatten(2, shape))
            of_sums.append(lse.unflatten(2, shape))
        asked, at = group.query_places()
        output[asked] = _of_tokens(torch.cat(outputs, 3), at).to(output.dtype)
        sums[asked] = _of_tokens(torch.cat(of_sums, 3)[..., None], at)[..., 0]
    return output, sums


class _WholeRows(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        exact: ExactPass,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        widths, *of_groups = map(list, zip(*exact.groups, strict=True))
        output, sums = _attend(query, key, value, widths, *of_groups, scale, window)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.exact, ctx.scale, ctx.window = exact, scale, window
        return output[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, sums = ctx.saved_tensors
        groups, scale = key.shape[1], ctx.scale
        each = query.shape[1] // groups
        pulls = [torch.zeros_like(part[0].transpose(0, 1), dtype=_wide(query)) for part in (query, key, value)]
        inner = (gradient[0].to(sums.dtype) * output.to(sums.dtype)).sum(-1)  # of gradient and output, per token
        for group in ctx.exact.groups:
            queries = _queries(query, group, groups, scale)
            keys, values = _in_blocks(key, group), _in_blocks(value, group)
            turned = _queries(gradient.transpose(1, 2), group, groups, 1.0)
            lse, delta = (_queries(part.T[None, ..., None], group, groups, 1.0) for part in (sums, inner))
            if group.asking is not None:  # a token pulls once, from the row that asks
                turned, delta = (_of_asking(part, group) for part in (turned, delta))
            of_keys, of_values, of_queries = torch.zeros_like(keys), torch.zeros_like(values), []
            for chunk in _chunks(group.width, ctx.window):
                span = slice(chunk.first, chunk.last)
                q, g, s, d = (
                    part[..., chunk.start : chunk.stop, :].flatten(2, 3) for part in (queries, turned, lse, delta)
                )
                hidden = chunk.hidden(each, ctx.window, query.device)
                scores = torch.matmul(q, keys[span].transpose(-1, -2))
                scores[-len(hidden) :].masked_fill_(hidden, -torch.inf)
                weights = scores.sub_(s).exp_()
                of_values[span] += torch.matmul(weights.transpose(-1, -2), g)
                slopes = torch.matmul(g, values[span].transpose(-1, -2)).sub_(d).mul_(weights)
                of_keys[span] += torch.matmul(slopes.transpose(-1, -2), q)
                pulled = torch.matmul(slopes, keys[span]).sum(0)
                of_queries.append(pulled.unflatten(2, (each, chunk.stop - chunk.start)))
            places, cells = group.query_places()
            pulls[0][places] = _of_tokens(torch.cat(of_queries, 3), cells) * scale
            for pull, in_blocks in ((pulls[1], of_keys), (pulls[2], of_values)):
                by_row = in_blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, None, : group.width]
                pull.index_add_(0, group.places, _of_tokens(by_row, group.cells))
        return *(pull.transpose(0, 1)[None].to(query.dtype) for pull in pulls), None, None, None


def _wide(part: torch.Tensor) -> torch.dtype:
    return torch.promote_types(part.dtype, torch.float32)


def _queries(query: torch.Tensor, group: RowGroup, groups: int, scale: float) -> torch.Tensor:
    """[1, heads, N, D] -> [R, groups, heads of a group, width, D], times `scale`, 0 where a row has no token."""
    rows = _padded(query)[group.tokens].unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4)
    return rows * scale if scale != 1 else rows


def _in_blocks(part: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """[1, groups, N, D] -> [blocks, R, groups, BLOCK, D], 0 where a row has no token."""
    missing = -group.width % BLOCK
    columns = functional.pad(group.tokens, (0, missing), value=part.shape[2])
    return _padded(part)[columns].unflatten(1, (-1, BLOCK)).permute(1, 0, 3, 2, 4).contiguous()


def _padded(part: torch.Tensor) -> torch.Tensor:
    """[1, heads, N, D] -> [N + 1, heads, D] with zeros at the end."""
    return functional.pad(part[0].transpose(0, 1).to(_wide(part)), (0, 0, 0, 0, 0, 1))


def _of_tokens(rows: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """[R, groups, heads of a group, width, D] -> [n, heads, D] of the tokens in these cells."""
    return rows.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)[cells]


def _of_asking(part: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """[R, groups, heads of a group, width, D] with zeros where a token does not ask."""
    asks = part.new_zeros(group.tokens.numel())
    asks[group.query_places()[1]] = 1
    return part * asks.view(len(part), 1, 1, -1, 1)
