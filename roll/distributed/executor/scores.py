"""Per-token scores between the workers that computed them and the workers that train on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll.types.ragged import token_indices

Score = Literal["log_probs", "log_probs_and_routes", "base_log_probs", "values"]


@dataclass(frozen=True)
class ScorePiece:
    """Scores of some rows, wherever they were computed: `handle` stands for a flat array, row after row, float32 but
    for the experts of tokens. Of lessons and experts, an entry is all that is told of a token."""

    rows: np.ndarray  # int64 row ids
    lengths: np.ndarray  # entries of each row: its tokens; of lessons, those of the response
    handle: object


@dataclass(frozen=True)
class ScoreSet:
    """One kind of score (log-probs, values) for all rows of a step. The driver holds handles only."""

    pieces: tuple[ScorePiece, ...]

    def of(self, rows: np.ndarray) -> tuple[ScorePiece, ...]:
        """The pieces in which some of these rows lie."""
        return tuple(piece for piece in self.pieces if np.isin(piece.rows, rows).any())


def join_scores(
    pieces: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    rows: np.ndarray,
    lengths: np.ndarray,
    has_response: np.ndarray,
) -> np.ndarray:
    """Scores of `rows` in this order, flat, from pieces (row ids, lengths, flat values) in any order. Lengths count the
    entries of each row.

    Rows without a response (padding rows, which only one role has) get 0, of whole numbers -1. ValueError if another
    row is missing, or if its length differs.
    """
    real = np.flatnonzero(has_response)
    if len(pieces) == 1 and np.array_equal(pieces[0][0], rows) and np.array_equal(pieces[0][1], lengths):
        return pieces[0][2]
    ids = np.concatenate([piece[0] for piece in pieces]) if pieces else np.empty(0, np.int64)
    have = np.concatenate([piece[1] for piece in pieces]) if pieces else np.empty(0, np.int64)
    values = np.concatenate([piece[2] for piece in pieces]) if pieces else np.empty(0, np.float32)
    unknown = -1 if values.dtype.kind == "i" else 0
    out = np.full((int(lengths.sum()), *values.shape[1:]), unknown, values.dtype)
    place = {int(row): position for position, row in enumerate(ids)}
    missing = [int(row) for row in rows[real] if int(row) not in place]
    if missing:
        raise ValueError(f"no scores for rows {missing[:5]}")
    source = np.array([place[int(row)] for row in rows[real]], np.int64)
    if not np.array_equal(have[source], lengths[real]):
        raise ValueError("scores and samples disagree on the length of a row")
    out[token_indices(lengths, real)] = values[token_indices(have, source)]
    return out
