"""Rows that begin alike as one sequence, in which every token is computed once (`roll/types/forest.py`)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from roll.models.sequences.layout import UNKNOWN, RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.tree_attention import TreeParts
from roll.types.forest import LEAST_SAVED, CallCosts, Forest, forest_of
from roll.types.packing import token_keys

_BITS = 32  # of a token's id, beside its place


@dataclass(frozen=True)
class Tree(RowLayout):
    """N tokens that stand for the M of B rows."""

    input_ids: torch.Tensor  # int64 [1, N]
    position_ids: torch.Tensor  # int64 [1, N]: the column in the row
    forest: Forest
    first: torch.Tensor  # int64 [B]: where each row begins in `all_places`
    all_places: torch.Tensor  # int64 [M], of the tokens of the rows, row after row
    source: torch.Tensor  # int64 [N]: one of the M that each token stands for
    inside: torch.Tensor  # bool [B, T]: which tokens of the padded rows the M are

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "use_cache": False,
            "tree_parts": self.parts,
        }

    @cached_property
    def parts(self) -> TreeParts:
        return TreeParts(self.forest, self.input_ids.device)

    def asked_once(
        self, places: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the distinct pairs of a place and a token, and for each of the given pairs which of them it is.

        Example: places [1 1 2] with tokens [7 7 9]: [1 2], [7 9], [0 0 1].
        """
        pairs, answers = torch.unique(places << _BITS | tokens, return_inverse=True)
        return pairs >> _BITS, pairs & (1 << _BITS) - 1, answers

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return self.all_places.index_select(0, self.first.index_select(0, rows) + columns)

    def row_tokens(self) -> torch.Tensor:
        return self.all_places

    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        return routes[self.inside].index_select(0, self.source)

    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        rows = routes.new_full((*input_ids.shape, *routes.shape[1:]), UNKNOWN)
        rows[self.inside] = routes.index_select(0, self.all_places)
        return rows.cpu()


def tree_or_pack(
    input_ids: torch.Tensor,
    counts: torch.Tensor,
    routes: torch.Tensor | None = None,
    calls: CallCosts | None = None,
    least_saved: int = LEAST_SAVED,
) -> Tree | Pack:
    """The first `counts` tokens of each row of input_ids [B, T]: a Tree, or a Pack where no token is shared.

    What a token is computed with is its id and, where they are given, its experts: `routes` int16 [B, T, layers, k].
    `calls`: costs by which rows that are not cheaper as a tree stand alone.
    """
    pack = Pack.of(input_ids, counts)
    forest = forest_of(_keys(input_ids, counts, routes), calls, least_saved)
    if forest.num_tokens == pack.num_tokens:
        return pack
    device = input_ids.device
    first, places, source, depth = (
        torch.from_numpy(part).to(device) for part in (forest.first, forest.places, forest.source, forest.depth)
    )
    ids = pack.input_ids.index_select(1, source)
    return Tree(ids, depth[None], forest, first, places, source, pack.inside)


def _keys(input_ids: torch.Tensor, counts: torch.Tensor, routes: torch.Tensor | None) -> list[np.ndarray]:
    keys = token_keys(input_ids.cpu().numpy(), None if routes is None else routes.cpu().numpy())
    return [row[:end] for row, end in zip(keys, counts.tolist(), strict=True)]
