"""Rows one after the other in one sequence, without padding: index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Pack:
    """What a Hugging Face backbone takes for rows that do not see each other. N tokens of B rows."""

    input_ids: torch.Tensor  # int64 [1, N]
    position_ids: torch.Tensor  # int64 [1, N]: each row counts from 0
    starts: torch.Tensor  # int32 [B + 1]: where each row begins, and N
    longest: int

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
        }

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Where in the pack these tokens are."""
        return self.starts[:-1].index_select(0, rows) + columns
