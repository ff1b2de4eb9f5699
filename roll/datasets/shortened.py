"""Rows within their length, for prompts and for conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from roll.configs.data import Truncation

T = TypeVar("T")


def shortened(items: Sequence[T], most: int, how: Truncation) -> list[T]:
    """At most so many items: without their beginning (left), their middle, or their end (any other).

    Example: of abcdefg and 5 middle leaves abefg, as verl cuts.
    """
    excess = max(0, len(items) - most)
    begin = {"left": 0, "middle": most // 2}.get(how, most)
    return [*items[:begin], *items[begin + excess :]]
