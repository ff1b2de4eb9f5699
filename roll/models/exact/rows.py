"""Rows of tokens as exact passes take them: one behind the other, in numbers that no kernel has a remainder of; and the
keys and values of rows that grow, by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from roll.models.exact.sizes import BLOCK, FLOOR, filled_length
from roll.models.sequences.layout import RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.tree import Tree
from roll.types.forest import Forest

_GROUP_ELEMENTS = 1 << 18  # queries times keys of the rows that attention computes side by side


class RowGroup(NamedTuple):
    """Rows of similar lengths, computed side by side. n tokens in R rows; of those that several rows have, one row asks
    what they attend to, and all have their keys."""

    width: int
    tokens: torch.Tensor  # int64 [R, width]: places among the N of the pass; N where a row has no token
    places: torch.Tensor  # int64 [n]: the same of those that there are
    cells: torch.Tensor  # int64 [n]: row * width + column of each
    asking: torch.Tensor | None = None  # int64: which of the n ask; None: all

    @classmethod
    def of(cls, rows: _Rows, chosen: np.ndarray, num_tokens: int, device: torch.device) -> RowGroup:
        lengths = rows.lengths[chosen]
        width = int(lengths.max() + -lengths.max() % FLOOR)
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        flat = np.where(inside, rows.starts[chosen][:, None] + columns, 0)
        tokens = torch.from_numpy(np.where(inside, rows.places[flat], num_tokens))
        cells = np.flatnonzero(inside)
        asks = rows.asks[flat.ravel()[cells]]
        asking = None if asks.all() else torch.from_numpy(np.flatnonzero(asks)).to(device)
        at = torch.from_numpy(cells)
        return cls(width, tokens.to(device), tokens.flatten()[at].to(device), at.to(device), asking)

    def query_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Places and cells of the tokens that ask."""
        if self.asking is None:
            return self.places, self.cells
        return self.places[self.asking], self.cells[self.asking]


class _Rows(NamedTuple):
    """M tokens of rows, one behind the other."""

    starts: np.ndarray  # int64 [B]: of each row among the M
    lengths: np.ndarray  # int64 [B]
    places: np.ndarray  # int64 [M]: among the N of a pass
    asks: np.ndarray  # bool [M]: of several with one place, the first

    @classmethod
    def of(cls, lengths: np.ndarray) -> _Rows:
        """Rows that share nothing."""
        num_tokens = int(lengths.sum())
        return cls(lengths.cumsum() - lengths, lengths, np.arange(num_tokens), np.ones(num_tokens, bool))


@dataclass(frozen=True)
class ExactPass:
    """Layout of a pass over N tokens, for attention: whole rows, one behind the other, with fillers at the end; or one
    token of each row (`is_step`), beside what the cache has of it."""

    columns: torch.Tensor  # int64 [n]: of the rows' tokens, without fillers: the position in the row
    rows: torch.Tensor  # int64 [n]: which row each is of
    groups: tuple[RowGroup, ...] = ()
    cache: ExactCache | None = None

    @property
    def is_step(self) -> bool:
        return not self.groups

    @classmethod
    def whole(
        cls, lengths: np.ndarray, num_tokens: int, device: torch.device, cache: ExactCache | None = None
    ) -> ExactPass:
        """Rows of these lengths, `num_tokens` with the fillers."""
        rows = np.repeat(np.arange(len(lengths)), lengths)
        laid = _Rows.of(lengths)
        columns = laid.places - laid.starts[rows]
        groups = _groups(laid, num_tokens, device)
        return cls(torch.from_numpy(columns).to(device), torch.from_numpy(rows).to(device), groups, cache)

    @classmethod
    def shared(cls, forest: Forest, num_tokens: int, device: torch.device) -> ExactPass:
        """Rows of which tokens are computed once."""
        num_flat = len(forest.places)
        lengths = np.diff(np.append(forest.first, num_flat))
        asks = forest.source[forest.places] == np.arange(num_flat)
        groups = _groups(_Rows(forest.first, lengths, forest.places, asks), num_tokens, device)
        rows = np.searchsorted(forest.first, forest.source, side="right") - 1
        return cls(torch.from_numpy(forest.depth).to(device), torch.from_numpy(rows).to(device), groups)


def _groups(rows: _Rows, num_tokens: int, device: torch.device) -> tuple[RowGroup, ...]:
    groups, lengths = [], rows.lengths
    order, first = np.argsort(lengths, kind="stable"), 0
    for last in range(1, len(order) + 1):
        if last < len(order):
            shortest, next_one = lengths[order[first]], lengths[order[last]]
            is_similar = next_one <= max(FLOOR, 1.25 * shortest)
            if is_similar and (last + 1 - first) * int(next_one) * min(int(next_one), BLOCK) <= _GROUP_ELEMENTS:
                continue
        groups.append(RowGroup.of(rows, order[first:last], num_tokens, device))
        first = last
    return tuple(groups)


@dataclass(frozen=True)
class ExactRows(RowLayout):
    """A pack or a tree, filled up to `filled_length`. A token's hidden state is the same in every one that has its
    row."""

    rows: Pack | Tree
    attention: ExactPass
    num_tokens: int  # with the fillers

    @classmethod
    def of(cls, rows: Pack | Tree) -> ExactRows:
        """StrategyError where ranks share the pack, or it shows pictures, is the caller's."""
        device = rows.input_ids.device
        num_tokens = filled_length(rows.input_ids.shape[1], device)
        if isinstance(rows, Tree):
            return cls(rows, ExactPass.shared(rows.forest, num_tokens, device), num_tokens)
        lengths = rows.starts.diff().cpu().numpy().astype(np.int64)
        return cls(rows, ExactPass.whole(lengths, num_tokens, device), num_tokens)

    @property
    def arguments(self) -> dict[str, Any]:
        return filled(self.rows.input_ids[0], self.rows.position_ids[0], self.num_tokens, self.attention)

    def asked_once(
        self, places: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.rows.asked_once(places, tokens)

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return self.rows.places(rows, columns)

    def row_tokens(self) -> torch.Tensor:
        return self.rows.row_tokens()

    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        raise AssertionError("router_replay is refused")

    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("router_replay is refused")


def filled(ids: torch.Tensor, positions: torch.Tensor, num_tokens: int, attention: ExactPass) -> dict[str, Any]:
    """Arguments of the backbone for these tokens [n] and fillers behind them."""
    missing = num_tokens - len(ids)
    # Fillers are the first token: a padding token's embedding is 0, at which roots (Gemma-3n's) have no gradient.
    return {
        "input_ids": torch.cat([ids, ids[:1].expand(missing)])[None],
        "position_ids": functional.pad(positions, (0, missing))[None],
        "use_cache": False,
        "exact": attention,
    }


class ExactPart(NamedTuple):
    """Rows of a cache that go into a new one (a row may be repeated)."""

    cache: ExactCache
    rows: torch.Tensor  # int64


@dataclass
class ExactCache:
    """Keys and values of B rows that grow: of a layer [blocks, B, groups, BLOCK, D], each at its position. What is
    behind a row's last token is not seen."""

    num_rows: int
    blocks: int = 1  # there is room for
    length: int = 0  # tokens of the longest row
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def write(self, layer: int, exact: ExactPass, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores the keys and values of the tokens of a pass, [N, groups, D] each."""
        block, at = exact.columns // BLOCK, exact.columns % BLOCK
        needed = int(block.max()) + 1
        if needed > self.blocks:
            self.blocks = max(needed, self.blocks + self.blocks // 2)
        if layer not in self.layers:
            self.layers[layer] = self._buffer(keys), self._buffer(values)
        elif len(self.layers[layer][0]) < self.blocks:
            of_keys, of_values = self.layers[layer]
            more = (0,) * 9 + (self.blocks - len(of_keys),)
            self.layers[layer] = functional.pad(of_keys, more), functional.pad(of_values, more)
        for buffer, states in zip(self.layers[layer], (keys, values), strict=True):
            buffer[block, exact.rows, :, at] = states[: len(block)].to(buffer.dtype)

    def _buffer(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: what is not seen has weight 0, and 0 * NaN is NaN. Of bf16, its values in fp32: products
        # of attention are in fp32 whatever the model's dtype.
        shape = (self.blocks, self.num_rows, states.shape[1], BLOCK, states.shape[2])
        return states.new_zeros(shape, dtype=torch.promote_types(states.dtype, torch.float32))

    def read(self, layer: int, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks up to that of the last of these positions."""
        needed = int(columns.max()) // BLOCK + 1
        keys, values = self.layers[layer]
        return keys[:needed], values[:needed]

    @staticmethod
    def joined(parts: Sequence[ExactPart]) -> ExactCache:
        """A new cache of all these rows, one part below the other. No key changes its place."""
        blocks = max(part.cache.blocks for part in parts)
        cache = ExactCache(sum(len(part.rows) for part in parts), blocks)
        for layer in parts[0].cache.layers:
            both = []
            for which in range(2):
                taken = [part.cache.layers[layer][which].index_select(1, part.rows) for part in parts]
                both.append(torch.cat([functional.pad(t, (0,) * 9 + (blocks - len(t),)) for t in taken], 1))
            cache.layers[layer] = both[0], both[1]
        return cache
