"""A step's rows where their tokens lie in pieces: which row is where, and a rank's shard put together from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np

from roll.types.batch import SampleBatch, SampledRows
from roll.types.collate import with_columns
from roll.types.columns import check_columns, columns, per_row


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """Rows, of which each is entry `places[i]` of piece `pieces[i]`, and what is known of them beside their tokens."""

    pieces: Annotated[np.ndarray, per_row(np.int64)]
    places: Annotated[np.ndarray, per_row(np.int64)]
    failed: Annotated[np.ndarray, per_row(np.bool_)]  # nothing of them is trained on
    rewards: Annotated[np.ndarray, per_row(np.float32)]
    group_ids: Annotated[np.ndarray, per_row(np.int64)]
    trajectory_ids: Annotated[np.ndarray, per_row(np.int64)]
    turns: Annotated[np.ndarray, per_row(np.int32)]
    domains: Annotated[np.ndarray, per_row(np.str_)]
    finish_reasons: Annotated[np.ndarray, per_row(np.int8)]

    def __post_init__(self) -> None:
        check_columns(self, {"rows": len(self.pieces)})

    def __len__(self) -> int:
        return len(self.pieces)

    def take(self, rows: np.ndarray, shortest: int) -> RowTable:
        """These rows, in this order. One beyond the end is a padding row, as `padding_rows` makes them: a copy of the
        shortest one."""
        added = rows >= len(self)
        source = np.where(added, shortest, rows)
        taken: dict[str, Any] = {name: getattr(self, name)[source] for name in columns(RowTable)}
        taken["failed"][added] = True
        taken["rewards"][added] = np.nan
        taken["group_ids"][added] = taken["trajectory_ids"][added] = -1
        return RowTable(**taken)

    def of_own_pieces(self) -> tuple[np.ndarray, RowTable]:
        """The pieces in which these rows lie, and the table with these alone, counted anew."""
        used, pieces = np.unique(self.pieces, return_inverse=True)
        return used, replace(self, pieces=pieces.astype(np.int64))


def assemble(table: RowTable, pieces: Sequence[SampledRows]) -> SampleBatch:
    """The rows of the table, in its order: what `collate_groups` makes where all tokens are here."""
    order = np.argsort(table.pieces, kind="stable")
    ends = np.cumsum(np.bincount(table.pieces, minlength=len(pieces)))
    chosen = np.split(table.places[order], ends[:-1])
    parts = _alike([piece.select(rows) for piece, rows in zip(pieces, chosen, strict=True)])
    rows = SampledRows.concatenate(parts).select(np.argsort(order))
    own = {field.name for field in fields(RowTable)} - {"pieces", "places", "failed"}
    return with_columns(rows, table.failed, {name: getattr(table, name) for name in own})


def _alike(parts: Sequence[SampledRows]) -> list[SampledRows]:
    """What some parts have and others have not is made up for: no reward for their tokens, no images, no
    experts that are known."""
    if any(part.token_rewards is not None for part in parts):
        parts = [
            replace(part, token_rewards=np.zeros(part.num_tokens, np.float32)) if part.token_rewards is None else part
            for part in parts
        ]
    shape = next((part.routes.shape[1:] for part in parts if part.routes is not None), None)
    if shape is not None:
        parts = [
            replace(part, routes=np.full((part.num_tokens, *shape), -1, np.int16)) if part.routes is None else part
            for part in parts
        ]
    if any(part.media is not None for part in parts):
        parts = [replace(part, media=((),) * len(part)) if part.media is None else part for part in parts]
    return list(parts)
