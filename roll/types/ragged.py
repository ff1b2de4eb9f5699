"""Arithmetic over rows that are stored flat: `lengths` says where each ends."""

from __future__ import annotations

import numpy as np


def token_indices(lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Flat positions of the tokens of `rows`, in that order. int64 [sum of lengths[rows]]."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    chosen = lengths[rows].astype(np.int64)
    ends = np.cumsum(chosen)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts[rows] - (ends - chosen), chosen)


def sum_rows(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum of a flat per-token array within each row. [R]; an empty row sums to 0."""
    totals = np.concatenate([[0], np.cumsum(values, dtype=np.float64 if values.dtype.kind == "f" else np.int64)])
    ends = np.cumsum(lengths, dtype=np.int64)
    return totals[ends] - totals[ends - lengths]


def run_starts(mask: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """True at the first token of each unbroken run of True within a row. bool [N]."""
    starts = mask.copy()
    starts[1:] &= ~mask[:-1]
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]
    starts[firsts] = mask[firsts]
    return starts
