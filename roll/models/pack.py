"""Rows one after the other in one sequence, without padding: index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from roll.models.sequence_ranks import SequenceRanks


@dataclass(frozen=True)
class Pack:
    """What a Hugging Face backbone takes for rows that do not see each other. N tokens of B rows; where `ranks` share
    them, this rank's part of the tokens."""

    input_ids: torch.Tensor  # int64 [1, N]
    position_ids: torch.Tensor  # int64 [1, N]: each row counts from 0
    starts: torch.Tensor  # int32 [B + 1]: where each row begins, and N; of the whole pack
    longest: int
    num_tokens: int  # of the rows, all ranks together
    ranks: SequenceRanks | None = None

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
        )

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
        return replace(
            self, input_ids=ids, position_ids=positions, starts=starts, longest=max(self.longest, missing), ranks=ranks
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the backbone's forward pass: no attention mask and no cache, which would make transformers look at it as
        one sequence; where rows begin under the names that its attention functions know."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "use_cache": False,
            "cu_seq_lens_q": self.starts,
            "cu_seq_lens_k": self.starts,
            "max_length_q": self.longest,
            "max_length_k": self.longest,
            "sequence_ranks": self.ranks,
        }

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Where in the pack these tokens are; in this rank's part, outside of it for those of others."""
        first = 0 if self.ranks is None else self.ranks.rank * self.input_ids.shape[1]
        return self.starts[:-1].index_select(0, rows) + columns - first

    def is_row_token(self) -> torch.Tensor:
        """Which tokens of this rank's part are of rows [N], and not what makes the parts equally long."""
        count = self.input_ids.shape[1]
        first = 0 if self.ranks is None else self.ranks.rank * count
        return torch.arange(first, first + count, device=self.input_ids.device) < self.num_tokens

    def has(self, places: torch.Tensor) -> torch.Tensor:
        """Which of the places are in this rank's part."""
        return (places >= 0) & (places < self.input_ids.shape[1])
