"""Attention of rows that share prefixes (`roll/types/forest.py`), without a mask and without a pair that does not see
each other.

The tokens of a node see each other causally; its descendants, which are one slice, see all of it. On a CPU each is a
call of a kernel, and a token's results of several calls are merged by their log-sum-exp, as Ring Attention merges those
of several devices (arXiv 2310.01889). Backward, every call gets the merged output and log-sum-exp, so its probabilities
are the final ones. The kernels of GPUs take many slices at once, and a launch costs as much as many tokens: there the
keys of each node's path are copied beside each other, and one call has all that a token sees.

The kernels are private to torch. They take and return [n, heads, D] and log-sum-exps [heads, n] here, whatever their
own layout is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from roll.models.sequences.packed_attention import MULTIPLE, WIDEST_FLASH, of_one_width, round_up
from roll.types.forest import Forest, Part
from roll.types.packing import ranges

_CPU_FORWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_FLASH_FORWARD: Any = torch.ops.aten._flash_attention_forward
_FLASH_BACKWARD: Any = torch.ops.aten._flash_attention_backward
_EFFICIENT_FORWARD: Any = torch.ops.aten._efficient_attention_forward
_EFFICIENT_BACKWARD: Any = torch.ops.aten._efficient_attention_backward
_COPIES_PER_LEVEL = 1 << 17  # keys, at which a level's merge costs as much (H200, 0.5B to 7B)
_KEYS_OF_A_CALL = 1 << 16  # whose gradients have copies for all heads: 0.9 GB in a 7B
_SHORTEST = 64  # queries of a call, where nodes are cut
_LSE_MULTIPLE = 32  # queries, in the log-sum-exps of the efficient kernel

_Places = slice | torch.Tensor


@dataclass(frozen=True)
class TreeParts:
    """The calls of a kernel that compute the attention of a forest's tokens, made once for all layers."""

    forest: Forest
    device: torch.device

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.forest.longest

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int
    ) -> torch.Tensor:
        return tree_attention(query, key, value, self, scaling, window)

    @cached_property
    def _calls(self) -> dict[tuple[bool, int], list[Call]]:
        return {}

    def calls(self, together: bool, window: int = 0) -> list[Call]:
        """The calls of a kernel that takes one slice of queries, or many `together`. `window`: tokens that each sees,
        itself and those before it; 0 is all of its row."""
        window = window if window < self.longest else 0
        if (together, window) not in self._calls:
            parts = self._parts_together(window) if together else self._parts_apart(window)
            self._calls[together, window] = [Call(part, self.device) for part in parts]
        return self._calls[together, window]

    def _parts_apart(self, window: int) -> list[Part]:
        # Slices as long as a window compute two pairs for each that sees one.
        return self.forest.paths(window, max(window, _SHORTEST)).split(1) if window else self.forest.parts

    def _parts_together(self, window: int) -> list[Part]:
        """One call with the paths of all nodes, or some if they have many keys, which it copies. Levels copy none, but
        their merges cost launches: they pay where many nodes have a long path and few levels."""
        levels = int(self.forest.level.max())
        copied = int(self.forest.depth[self.forest.start[:-1]].sum())
        if not window and (not levels or copied > levels * _COPIES_PER_LEVEL):
            return self.forest.levels
        return self.forest.paths(window).split(_KEYS_OF_A_CALL)


@dataclass(frozen=True)
class Call:
    """One call: queries, and the keys that they see."""

    part: Part
    device: torch.device

    @property
    def is_causal(self) -> bool:
        return self.part.is_causal

    @property
    def window(self) -> int:
        return self.part.window

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries and keys of each slice."""
        queries, num_keys = np.diff(self.part.queries)[:, 0], self.part.num_keys
        return queries, np.diff(self.part.keys)[:, 0] if num_keys is None else num_keys

    @cached_property
    def queries(self) -> _Places:
        """Places of the queries among the tokens: a slice, or int64 [n]."""
        return _places(self.part.queries, self.device)

    @cached_property
    def keys(self) -> _Places:
        return _places(self.part.keys, self.device)

    @cached_property
    def starts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Starts of the slices of queries, and of keys, among those of the call, int32 [slices + 1]."""
        first, second = (torch.from_numpy(np.append(0, n.cumsum())).int().to(self.device) for n in self._counts)
        return first, second

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Lengths of the longest slice of queries, and of keys."""
        first, second = (int(counts.max()) for counts in self._counts)
        return first, second

    @cached_property
    def among_keys(self) -> torch.Tensor:
        """Places of the queries among the keys of a causal call, where each slice of keys ends with them, int64 [n]."""
        queries, keys = self._counts
        return torch.from_numpy(ranges(keys.cumsum() - queries, queries)).to(self.device)

    @cached_property
    def padded(self) -> torch.Tensor:
        """Places of the queries if every slice is as long as `_LSE_MULTIPLE` wants it, int64 [n]."""
        counts = self._counts[0]
        room = round_up(self.longest[0], _LSE_MULTIPLE)
        return torch.from_numpy(ranges(np.arange(len(counts)) * room, counts)).to(self.device)

    @property
    def needs_square(self) -> bool:
        """Whether the efficient kernel wants as many queries as keys: the backward pass of its windows counts both from
        the first one (torch 2.11 to 2.13)."""
        return self.window > 0 and self.part.num_keys is not None

    @cached_property
    def square(self) -> Call:
        """The same with a query for every key."""
        assert self.part.num_keys is not None
        ends = self.part.num_keys.cumsum()
        spans = np.stack([ends - self.part.num_keys, ends], 1)
        return Call(self.part._replace(queries=spans, keys=spans, num_keys=None), self.device)

    def band(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Numbers to add to the scores of the only slice, [queries, keys]; None without a window."""
        if not self.window:
            return None
        queries, keys = self.longest
        sees = torch.ones(queries, keys, dtype=torch.bool, device=self.device)
        sees = sees.tril(keys - queries).triu(keys - queries - self.window + 1)
        return torch.zeros(queries, keys, dtype=dtype, device=self.device).masked_fill_(~sees, float("-inf"))


def _places(tokens: np.ndarray, device: torch.device) -> _Places:
    """The tokens of spans [slices, 2], one behind the other, or these tokens [n]."""
    if tokens.ndim == 2:
        tokens = ranges(tokens[:, 0], np.diff(tokens)[:, 0])
    if (np.diff(tokens) == 1).all():
        return slice(int(tokens[0]), int(tokens[-1]) + 1)
    return torch.from_numpy(tokens).to(device)


@dataclass(frozen=True)
class Kernel:
    """`forward`: query, key, value, call and scale -> output and log-sum-exp. `backward`: the gradient of the output,
    query, key, value, merged output and log-sum-exp, call and scale -> gradients of query, key and value."""

    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Call, float], tuple[torch.Tensor, torch.Tensor]]
    backward: Callable[..., tuple[torch.Tensor, ...]]
    takes_many: bool  # slices of any length in one call
    multiple: int = 1  # of D


def _cpu_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    heads_first = (part.transpose(0, 1)[None] for part in (query, key, value))
    band = call.band(query.dtype)
    out, lse = _CPU_FORWARD(*heads_first, 0.0, call.is_causal and band is None, attn_mask=band, scale=scale)
    return out[0].transpose(0, 1), lse[0]


def _cpu_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    call: Call,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    heads_first = (part.transpose(0, 1)[None] for part in (gradient, query, key, value, out))
    band = call.band(query.dtype)
    pulls = _CPU_BACKWARD(*heads_first, lse[None], 0.0, call.is_causal and band is None, attn_mask=band, scale=scale)
    return tuple(pull[0].transpose(0, 1) for pull in pulls)


def _flash_longest(call: Call) -> tuple[int, int]:
    # Rows of one query take a path of its own, for decoding. The numbers only bound the kernel's grid.
    return max(2, call.longest[0]), call.longest[1]


def _flash_mask(call: Call) -> dict[str, Any]:
    window = {"window_size_left": call.window - 1, "window_size_right": 0} if call.window else {}
    return {"is_causal": call.is_causal and not call.window} | window


def _flash_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = _FLASH_FORWARD(
        query, key, value, *call.starts, *_flash_longest(call), 0.0, return_debug_mask=False, scale=scale,
        **_flash_mask(call),
    )  # fmt: skip
    return out, lse


def _flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    call: Call,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    state = torch.empty(2, dtype=torch.uint64, device=query.device)  # of dropout, which there is none of
    return _FLASH_BACKWARD(
        gradient, query, key, value, out, lse.contiguous(), *call.starts, *_flash_longest(call), 0.0,
        rng_state=state, unused=state, scale=scale, **_flash_mask(call),
    )  # fmt: skip


def _efficient_mask(call: Call) -> int:
    """Number of the kernel's mask: causal from the lower right corner, or none."""
    return 2 if call.is_causal else 0


def _among_keys(part: torch.Tensor, call: Call) -> torch.Tensor:
    """Numbers of queries [n, ...] at their places among the keys, and zeros for the others."""
    return part.new_zeros(call.square.part.queries[-1, 1], *part.shape[1:]).index_copy_(0, call.among_keys, part)


def _efficient_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if call.needs_square:
        out, lse = _efficient_forward(_among_keys(query, call), key, value, call.square, scale)
        return out.index_select(0, call.among_keys), lse.index_select(1, call.among_keys)
    key, value = (_for_all_heads(part, query.shape[1]) for part in (key, value))
    out, lse, *_ = _EFFICIENT_FORWARD(
        query[None], key[None], value[None], None, *call.starts, *call.longest, 0.0, _efficient_mask(call), True,
        scale=scale, window_size=call.window or None,
    )  # fmt: skip
    return out[0], lse.transpose(0, 1).flatten(1).index_select(1, call.padded)  # it was [slices, heads, padded]


def _efficient_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    call: Call,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    if call.needs_square:
        gradient, query, out = (_among_keys(part, call) for part in (gradient, query, out))
        all_lse = lse.new_full((len(lse), len(query)), float("inf")).index_copy_(1, call.among_keys, lse)
        of_query, *others = _efficient_backward(gradient, query, key, value, out, all_lse, call.square, scale)
        return of_query.index_select(0, call.among_keys), *others
    heads, groups, slices = query.shape[1], key.shape[1], len(call.part.queries)
    key, value = (_for_all_heads(part, heads) for part in (key, value))
    # Padding sees nothing: exp(score - inf) is 0.
    padded = lse.new_full((heads, slices * round_up(call.longest[0], _LSE_MULTIPLE)), float("inf"))
    padded = padded.index_copy_(1, call.padded, lse).view(heads, slices, -1).transpose(0, 1).contiguous()
    state = torch.empty((), dtype=torch.int64, device=query.device)  # of dropout, which there is none of
    pulls = _EFFICIENT_BACKWARD(
        gradient[None], query[None], key[None], value[None], None, out[None], *call.starts, *call.longest, padded, 0.0,
        state, state, _efficient_mask(call), False, scale=scale, window_size=call.window or None,
    )  # fmt: skip
    of_query, *others = (pull[0] for pull in pulls[:3])
    return of_query, *(pull.unflatten(1, (groups, -1)).sum(2) for pull in others)


def _for_all_heads(part: torch.Tensor, heads: int) -> torch.Tensor:
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], 1)


_CPU = Kernel(_cpu_forward, _cpu_backward, takes_many=False)
_FLASH = Kernel(_flash_forward, _flash_backward, takes_many=True, multiple=MULTIPLE)
_EFFICIENT = Kernel(_efficient_forward, _efficient_backward, takes_many=True, multiple=MULTIPLE)


def kernel_for(query: torch.Tensor, width: int) -> Kernel:
    """The kernel of this device and type, for heads as wide as this."""
    if query.device.type == "cpu":
        return _CPU
    return _FLASH if query.dtype != torch.float32 and width <= WIDEST_FLASH else _EFFICIENT


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parts: TreeParts,
    scaling: float | None = None,
    window: int = 0,
) -> torch.Tensor:
    """Attention of the N tokens of a forest. Query [1, heads, N, D] with keys and values [1, groups, N, D] ->
    [1, N, heads, D]. Values may have another width than keys. `window`: tokens that each sees, itself and those before
    it; 0 is all of its row."""
    width = value.shape[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kernel = kernel_for(query, max(width, query.shape[-1]))
    query, key, value = (part[0].transpose(0, 1) for part in of_one_width(query, key, value, kernel.multiple))
    calls = parts.calls(kernel.takes_many, window)
    output: torch.Tensor = _Parts.apply(query, key, value, kernel, calls, scale)  # type: ignore[assignment]
    return output[None, ..., :width]


class _Parts(torch.autograd.Function):
    """Query [N, heads, D] with keys and values [N, groups, D] -> [N, heads, D]."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kernel: Kernel,
        calls: list[Call],
        scale: float,
    ) -> torch.Tensor:
        if len(calls) == 1:  # it has all queries
            output, lse = kernel.forward(query, _at(key, calls[0].keys), _at(value, calls[0].keys), calls[0], scale)
        else:
            output, lse = _merged(query, key, value, kernel, calls, scale)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.kernel, ctx.calls, ctx.scale = kernel, calls, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, lse = ctx.saved_tensors
        gradient = gradient.contiguous()
        if len(ctx.calls) == 1:
            call = ctx.calls[0]
            keys, values = _at(key, call.keys), _at(value, call.keys)
            of_query, *others = ctx.kernel.backward(gradient, query, keys, values, output, lse, call, ctx.scale)
            return of_query, *(_collected(part, len(key), call.keys) for part in others), None, None, None
        pulls = tuple(torch.zeros_like(part, dtype=_sums(part)) for part in (query, key, value))
        for call in ctx.calls:
            gradients = ctx.kernel.backward(
                _at(gradient, call.queries), _at(query, call.queries), _at(key, call.keys), _at(value, call.keys),
                _at(output, call.queries), _at(lse, call.queries, 1), call, ctx.scale,
            )  # fmt: skip
            for pull, part, where in zip(pulls, gradients, (call.queries, call.keys, call.keys), strict=True):
                _add(part, pull, where)
        return *(pull.to(query.dtype) for pull in pulls), None, None, None


def _merged(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kernel: Kernel, calls: list[Call], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp over all calls."""
    whole = query.new_empty(query.shape, dtype=_sums(query))
    lse = whole.new_empty(query.shape[1::-1])
    for call in calls:
        out, part = kernel.forward(_at(query, call.queries), _at(key, call.keys), _at(value, call.keys), call, scale)
        into, sums = _at(whole, call.queries), _at(lse, call.queries, 1)
        if call.part.is_first:
            into.copy_(out)
            sums.copy_(part)
        else:
            # A token's attention is one softmax over all its ancestors, computed in parts. The share of a part is its
            # sum of exponentials by that of all so far: exp(part) / (exp(sums) + exp(part)) = sigmoid(part - sums).
            into.lerp_(out.to(into.dtype), torch.sigmoid(part - sums).t()[..., None])
            torch.logaddexp(sums, part, out=sums)
        if not isinstance(call.queries, slice):  # they are copies
            whole.index_copy_(0, call.queries, into)
            lse.index_copy_(1, call.queries, sums)
    return whole.to(query.dtype), lse


def _at(part: torch.Tensor, where: _Places, dim: int = 0) -> torch.Tensor:
    """A view of a slice, a copy of places."""
    if isinstance(where, slice):
        return part[where] if dim == 0 else part[:, where]
    return part.index_select(dim, where)


def _add(part: torch.Tensor, total: torch.Tensor, where: _Places) -> None:
    """Adds a part at its places, of which some may be the same."""
    if isinstance(where, slice):
        total[where].add_(part)
    else:
        total.index_add_(0, where, part.to(total.dtype))


def _collected(part: torch.Tensor, num_tokens: int, where: _Places) -> torch.Tensor:
    """The gradient of all tokens [N, ...] by the only part that there is, of places."""
    if isinstance(where, slice):
        return part
    total = part.new_zeros(num_tokens, *part.shape[1:], dtype=_sums(part))
    _add(part, total, where)
    return total.to(part.dtype)


def _sums(part: torch.Tensor) -> torch.dtype:
    """Results of several calls add up in fp32 at least, and are rounded once."""
    return torch.promote_types(part.dtype, torch.float32)
