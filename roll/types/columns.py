"""Columns: arrays of a dataclass whose unit and dtype stand in its annotations (`Annotated[np.ndarray,
per_row(np.int32)]`), and are checked when it is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

Unit = Literal["rows", "tokens", "turns"]


@dataclass(frozen=True)
class Column:
    """One entry per `unit`, an array of `inner` dimensions; `dtype` is exact, but that text may have any width."""

    unit: Unit
    dtype: np.dtype
    inner: int = 0

    def holds(self, values: np.ndarray, size: int) -> bool:
        is_kind = values.dtype == self.dtype or (self.dtype.kind == "U" and values.dtype.kind == "U")
        return is_kind and values.ndim == 1 + self.inner and len(values) == size


def per_row(dtype: type, inner: int = 0) -> Column:
    return Column("rows", np.dtype(dtype), inner)


def per_token(dtype: type, inner: int = 0) -> Column:
    return Column("tokens", np.dtype(dtype), inner)


def per_turn(dtype: type) -> Column:
    return Column("turns", np.dtype(dtype))


@cache
def columns(owner: type) -> Mapping[str, Column]:
    """The columns of a dataclass by name, inherited ones included."""
    hints = get_type_hints(owner, include_extras=True)
    marks = {name: [mark for mark in _marks(hint) if isinstance(mark, Column)] for name, hint in hints.items()}
    return MappingProxyType({name: column_marks[0] for name, column_marks in marks.items() if column_marks})


@cache
def _quick_checks(owner: type) -> tuple[tuple[str, Unit, np.dtype, int, Column], ...]:
    return tuple((name, col.unit, col.dtype, 1 + col.inner, col) for name, col in columns(owner).items())


def _marks(hint: Any) -> tuple[Any, ...]:
    """Return the marks beside the type in Annotated[...], also within a union."""
    if hasattr(hint, "__metadata__"):
        return hint.__metadata__
    return tuple(mark for part in get_args(hint) for mark in _marks(part))


def check_columns(owner: object, sizes: Mapping[Unit, int], called: str = "") -> None:
    """ValueError for a column of another length, another dtype or more dimensions. Absent columns are None. `called`:
    the owner's name in the message, where people know another one than its class's."""
    for name, unit, dtype, ndim, column in _quick_checks(type(owner)):
        values, size = getattr(owner, name), sizes[unit]
        # What nearly all are, without a call: thousands of answers come with each reply.
        if type(values) is np.ndarray and values.dtype == dtype and values.ndim == ndim and len(values) == size:
            continue
        if values is None or (type(values) is np.ndarray and column.holds(values, size)):
            continue
        where = f"{called or type(owner).__name__}.{name}"
        if not isinstance(values, np.ndarray):
            raise ValueError(f"{where} is a {type(values).__name__}, not a numpy array of {column.dtype.name}")
        if len(values) != size:
            raise ValueError(f"{where} has {len(values)} entries for {size} {column.unit}")
        raise ValueError(f"{where} is {values.dtype} {list(values.shape)}, not {column.dtype.name} [{size}]")


# Arithmetic over rows that are stored flat: `lengths` says where each ends.


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
