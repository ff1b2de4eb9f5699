"""A key-value cache for batches whose rows come and go: preallocated, left padded, all rows end at the same column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH_COLUMNS = 64


class _BatchLayer(CacheLayerMixin):
    """Keys and values [B, heads, columns, head_dim] of one layer. Writes go to the next columns of a buffer that
    grows by doubling, where DynamicCache copies everything at every token."""

    is_sliding = False

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = _buffer(key_states, key_states.shape[0], self.capacity)
        self.values = _buffer(value_states, value_states.shape[0], self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        if end > self.capacity:
            self.capacity = max(end + _GROWTH_COLUMNS, 2 * self.capacity)
            self.keys = _widened(self.keys, start, self.capacity)
            self.values = _widened(self.values, start, self.capacity)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.used()

    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class BatchCache(Cache):
    """The cache of a batch, in Hugging Face's form: any model that takes a `Cache` of full-attention layers writes to
    it."""

    def __init__(self, num_layers: int, capacity: int):
        self.batch_layers = [_BatchLayer(capacity) for _ in range(num_layers)]
        super().__init__(layers=list(self.batch_layers))

    @property
    def length(self) -> int:
        """Columns in use."""
        return self.batch_layers[0].length


@dataclass(frozen=True)
class Part:
    """Rows of a cache that go into a new one, in this order (a row may be repeated), without its first `trim`
    columns."""

    cache: BatchCache
    rows: torch.Tensor  # int64
    trim: int = 0

    @property
    def length(self) -> int:
        return self.cache.length - self.trim


def assemble(parts: Sequence[Part], capacity: int) -> BatchCache:
    """A new cache of all these rows, one part below the other, each shifted right so that all end at the same
    column."""
    length = max(part.length for part in parts)
    cache = BatchCache(len(parts[0].cache.batch_layers), max(capacity, length))
    for number, layer in enumerate(cache.batch_layers):
        sources = [part.cache.batch_layers[number].used() for part in parts]
        layer.keys = _stack([keys for keys, _ in sources], parts, length, layer.capacity)
        layer.values = _stack([values for _, values in sources], parts, length, layer.capacity)
        layer.length = length
        layer.is_initialized = True
    return cache


def _stack(sources: Sequence[torch.Tensor], parts: Sequence[Part], length: int, capacity: int) -> torch.Tensor:
    target = _buffer(sources[0], sum(len(part.rows) for part in parts), capacity)
    first = 0
    for source, part in zip(sources, parts, strict=True):
        last = first + len(part.rows)
        target[first:last, :, length - part.length : length] = source[:, :, part.trim :][part.rows]
        first = last
    return target


def _widened(source: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    target = _buffer(source, source.shape[0], capacity)
    target[:, :, :length] = source[:, :, :length]
    return target


def _buffer(like: torch.Tensor, num_rows: int, capacity: int) -> torch.Tensor:
    # Zeros, not empty: a masked column still enters the attention with weight 0, and 0 * NaN is NaN.
    return like.new_zeros(num_rows, like.shape[1], capacity, like.shape[3])
