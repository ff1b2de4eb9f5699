"""What a person sees first of a run: the columns of its table, and the two curves that say whether it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One quantity of the console's table; `format` as in Python's format()."""

    title: str
    metric: str
    format: str


@dataclass(frozen=True)
class Curve:
    """A metric over the steps. `name` leads the summary's keys, `label` stands beside the axis; `parts` are the
    beginnings of metrics that are drawn beside it."""

    name: str
    metric: str
    label: str
    best: Literal["highest", "lowest"] = "highest"
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """Columns and curves that the display of one kind of run shows."""

    columns: tuple[Column, ...]
    training: Curve
    validation: Curve
