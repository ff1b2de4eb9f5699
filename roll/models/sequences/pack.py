"""Rows one after the other in one sequence, without padding: index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from roll.models.sequences.layout import UNKNOWN, RowLayout, RowPictures, computed
from roll.models.sequences.ranks import SequenceRanks

_SHORTEST = 2 / 3  # a row beside the longest that it is laid out with: at most half as much padding as tokens


@dataclass(frozen=True)
class AlikeRows:
    """Rows of a pack of similar lengths. `tokens`: the places of theirs in the pack, int64 [n]. `inside`: where these
    stand once the rows lie side by side, bool [rows, longest]."""

    tokens: torch.Tensor
    inside: torch.Tensor

    def apart(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [1, N, ...] as [rows, longest, ...], zeros behind each row's last."""
        padded = tokens.new_zeros(*self.inside.shape, *tokens.shape[2:])
        padded[self.inside] = tokens[0, self.tokens]
        return padded


class RowGroups(NamedTuple):
    """All rows of a pack. `order`: of each token of the pack, its place among those of the groups, int64 [N]."""

    groups: list[AlikeRows]
    order: torch.Tensor


@dataclass(frozen=True)
class RowPlaces:
    """Begins of the rows of a pack, and how they are laid out side by side, once a layer asks. `starts`: int32 [B + 1],
    the last is N."""

    starts: torch.Tensor

    @cached_property
    def groups(self) -> RowGroups:
        """The longest rows first.

        Example: rows of 9, 2, 7 and 3 tokens are two groups, 9 and 7 with 18 places, 3 and 2 with 6.
        """
        return self._groups(_SHORTEST)

    @cached_property
    def one_group(self) -> RowGroups:
        return self._groups(0.0)

    def _groups(self, shortest: float) -> RowGroups:
        starts, lengths = self.starts[:-1].tolist(), self.starts.diff().tolist()
        groups: list[list[int]] = []
        for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
            if not groups or lengths[row] < shortest * lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(row)
        alike = [self._alike([starts[row] for row in rows], [lengths[row] for row in rows]) for rows in groups]
        return RowGroups(alike, torch.cat([group.tokens for group in alike]).argsort())

    def _alike(self, starts: list[int], lengths: list[int]) -> AlikeRows:
        columns = torch.arange(lengths[0])
        inside = columns < torch.tensor(lengths)[:, None]
        tokens = (torch.tensor(starts)[:, None] + columns)[inside]
        return AlikeRows(tokens.to(self.starts.device), inside.to(self.starts.device))


@dataclass(frozen=True)
class Pack(RowLayout):
    """Input of a Hugging Face backbone for rows that do not attend to each other. N tokens of B rows; where `ranks`
    share them, this rank's part of the tokens."""

    input_ids: torch.Tensor  # int64 [1, N]
    position_ids: torch.Tensor  # int64 [1, N]: each row counts from 0
    starts: torch.Tensor  # int32 [B + 1]: where each row begins, and N; of the whole pack
    longest: int
    num_tokens: int  # of the rows, all ranks together
    inside: torch.Tensor  # bool [B, T]: which tokens of the padded rows these are
    shared_by: SequenceRanks | None = None
    pictures: RowPictures | None = None

    @classmethod
    def of(cls, input_ids: torch.Tensor, counts: torch.Tensor) -> Pack:
        """The first `counts` tokens of each row of input_ids [B, T].

        Example: counts [2, 3] of [[5, 9, 0, 0], [8, 3, 11, 2]] are [[5, 9, 8, 3, 11]] at positions [[0, 1, 0, 1, 2]];
        the rows start at [0, 2, 5].
        """
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        inside = columns < counts[:, None]
        return cls(
            input_ids[inside][None],
            columns.expand_as(inside)[inside][None],
            functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32),
            int(counts.max()),
            int(counts.sum()),
            inside,
        )

    @classmethod
    def scored(cls, input_ids: torch.Tensor, lengths: torch.Tensor, ranks: SequenceRanks | None = None) -> Pack:
        """Rows without their last tokens, which `ranks` may share."""
        pack = cls.of(input_ids, computed(lengths))
        return pack if ranks is None else pack.shared(ranks)

    def shared(self, ranks: SequenceRanks) -> Pack:
        """This rank's part. Tokens that make the parts equally long are a row of their own, at the end.

        Example: rank 1 of 2 has [[8, 3, 0]] at positions [[0, 1, 0]] of [[5, 9, 4, 8, 3]]; the rows start at [0, 3,
        5, 6].
        """
        missing = -self.input_ids.shape[1] % ranks.size
        filling = torch.arange(missing, device=self.input_ids.device)
        ids = functional.pad(self.input_ids, (0, missing)).chunk(ranks.size, 1)[ranks.rank]
        positions = torch.cat([self.position_ids[0], filling])[None].chunk(ranks.size, 1)[ranks.rank]
        starts = torch.cat([self.starts, self.starts[-1:] + missing]) if missing else self.starts
        longest = max(self.longest, missing)
        return replace(self, input_ids=ids, position_ids=positions, starts=starts, longest=longest, shared_by=ranks)

    @property
    def ranks(self) -> SequenceRanks | None:
        return self.shared_by

    @property
    def picture_inputs(self) -> RowPictures | None:
        return self.pictures

    @property
    def _positions(self) -> torch.Tensor:
        """int64 [1, N], or [4, 1, N] where pictures have positions: in the row, in time, vertically, horizontally."""
        if self.pictures is None or self.pictures.positions is None:
            return self.position_ids
        return torch.cat([self.position_ids, self.pictures.positions[:, self.inside]])[:, None]

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the backbone's forward pass. There is no attention mask and no cache, since transformers would
        treat the pack as one sequence. The rows' starts have the names that its attention functions know."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self._positions,
            "use_cache": False,
            "cu_seq_lens_q": self.starts,
            "cu_seq_lens_k": self.starts,
            "max_length_q": self.longest,
            "max_length_k": self.longest,
            "sequence_ranks": self.ranks,
            "seq_idx": self._row_places,
        }

    @property
    def _row_places(self) -> RowPlaces | None:
        """Places of the rows for layers with states; None if ranks share the pack, which these layers do not
        support."""
        return None if self.ranks is not None else RowPlaces(self.starts)

    @property
    def _first(self) -> int:
        """Position in the whole pack at which this rank's part begins."""
        return 0 if self.ranks is None else self.ranks.rank * self.input_ids.shape[1]

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return self.starts[:-1].index_select(0, rows) + columns - self._first

    def has(self, places: torch.Tensor) -> torch.Tensor:
        return (places >= 0) & (places < self.input_ids.shape[1])

    def row_tokens(self) -> torch.Tensor:
        """Positions of real tokens, without the padding that makes the ranks' parts equally long."""
        count = min(max(self.num_tokens - self._first, 0), self.input_ids.shape[1])
        return torch.arange(count, device=self.input_ids.device)

    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        flat = routes[self.inside]
        if self.ranks is None:
            return flat
        missing = flat.new_full((-len(flat) % self.ranks.size, *flat.shape[1:]), UNKNOWN)
        return torch.cat([flat, missing]).chunk(self.ranks.size)[self.ranks.rank]

    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        rows = routes.new_full((*input_ids.shape, *routes.shape[1:]), UNKNOWN)
        flat = routes if self.ranks is None else self.ranks.joined(routes.int()).to(routes.dtype)  # gloo has no int16
        rows[self.inside] = flat[: self.num_tokens]
        return rows.cpu()
