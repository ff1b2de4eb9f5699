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

_GROUP_ELEMENTS = 1 << 18  # queries times keys of the rows that attention computes side by side


class RowGroup(NamedTuple):
    """Rows of similar lengths, computed side by side. n tokens in R rows."""

    width: int
    tokens: torch.Tensor  # int64 [R, width]: places among the N of the pass; N where a row has no token
    places: torch.Tensor  # int64 [n]: the same of those that there are
    cells: torch.Tensor  # int64 [n]: row * width + column of each

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray, num_tokens: int, device: torch.device) -> RowGroup:
        width = int(lengths.max() + -lengths.max() % FLOOR)
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        tokens = torch.from_numpy(np.where(inside, starts[:, None] + columns, num_tokens))
        cells = torch.from_numpy(np.flatnonzero(inside))
        return cls(width, tokens.to(device), tokens.flatten()[cells].to(device), cells.to(device))


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
        ends = lengths.cumsum()
        starts = ends - lengths
        groups, order = [], np.argsort(lengths, kind="stable")
        first = 0
        for last in range(1, len(order) + 1):
            if last < len(order):
                shortest, next_one = lengths[order[first]], lengths[order[last]]
                is_similar = next_one <= max(FLOOR, 1.25 * shortest)
                if is_similar and (last + 1 - first) * int(next_one) * min(int(next_one), BLOCK) <= _GROUP_ELEMENTS:
                    continue
            chosen = order[first:last]
            groups.append(RowGroup.of(starts[chosen], lengths[chosen], num_tokens, device))
            first = last
        rows = np.repeat(np.arange(len(lengths)), lengths)
        columns = np.arange(ends[-1]) - starts[rows]
        return cls(torch.from_numpy(columns).to(device), torch.from_numpy(rows).to(device), tuple(groups), cache)


@dataclass(frozen=True)
class ExactRows(RowLayout):
    """A pack, filled up to `filled_length`. A token's hidden state is the same in every one that has its row."""

    pack: Pack
    attention: ExactPass
    num_tokens: int  # with the fillers

    @classmethod
    def of(cls, pack: Pack) -> ExactRows:
        """StrategyError where ranks share the pack, or it shows pictures, is the caller's."""
        lengths = pack.starts.diff().cpu().numpy().astype(np.int64)
        num_tokens = filled_length(pack.num_tokens)
        return cls(pack, ExactPass.whole(lengths, num_tokens, pack.input_ids.device), num_tokens)

    @property
    def arguments(self) -> dict[str, Any]:
        return filled(self.pack.input_ids[0], self.pack.position_ids[0], self.num_tokens, self.attention)

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return self.pack.places(rows, columns)

    def row_tokens(self) -> torch.Tensor:
        return self.pack.row_tokens()

    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        raise AssertionError("router_replay is refused")

    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("router_replay is refused")


def filled(ids: torch.Tensor, positions: torch.Tensor, num_tokens: int, attention: ExactPass) -> dict[str, Any]:
    """Arguments of the backbone for these tokens [n] and fillers behind them."""
    missing = num_tokens - len(ids)
    return {
        "input_ids": functional.pad(ids, (0, missing))[None],
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
