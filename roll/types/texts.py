"""What is to be read of many rows, stored so that a reader of one row touches no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll.types.rollout import RowTexts, Turn


@dataclass(frozen=True)
class TextTable:
    """The texts of rows, one after the other as UTF-8: of row i the parts 2 i (`response_text`) and 2 i + 1
    (`raw_text`)."""

    data: np.ndarray  # uint8
    ends: np.ndarray  # int64, of the parts
    turns: tuple[tuple[Turn, ...], ...] | None = None  # of each row

    @staticmethod
    def of(rows: Sequence[RowTexts]) -> TextTable:
        parts = [_encoded(text) for row in rows for text in (row.response_text, row.raw_text)]
        turns = tuple(row.turns for row in rows) if any(row.turns for row in rows) else None
        return TextTable(np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(part) for part in parts]), turns)

    def __len__(self) -> int:
        return len(self.ends) // 2

    def __getitem__(self, row: int) -> RowTexts:
        return RowTexts(self._part(2 * row), self._part(2 * row + 1), () if self.turns is None else self.turns[row])

    def _part(self, number: int) -> str:
        start = int(self.ends[number - 1]) if number else 0
        return self.data[start : int(self.ends[number])].tobytes().decode("utf-8", "surrogatepass")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
