"""Rows in the order in which they are trained on, and the place in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from roll.errors import ConfigError
from roll.types.batch import Rows
from roll.types.columns import columns


class RowSource:
    """Goes through the rows epoch after epoch; with `shuffle`, in a new order each time. Rows that belong together come
    together. `key` is the YAML path of the data, for messages; `size` rows make an epoch, those beyond are left out of
    it."""

    def __init__(self, rows: Rows, seed: int, shuffle: bool, key: str, size: int | None = None):
        if not len(rows):
            raise ConfigError(f"{key}: there are no rows to train on")
        self.rows = rows
        self._seed, self._shuffle, self._key = seed, shuffle, key
        self._drawn, self._size = 0, len(rows) if size is None else size
        self._contents = _digest(rows)
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))  # epoch, its order

    def next_rows(self, count: int) -> Rows:
        """The next so many rows; they may end one epoch and begin the next."""
        return self.rows.select(self.next_places(count))

    def next_places(self, count: int) -> np.ndarray:
        """Which rows these are, int64."""
        drawn = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        return np.array([self._row_at(int(place)) for place in drawn], np.int64)

    @property
    def epochs(self) -> float:
        """How often the rows have been gone through. Example: 30 drawn of 20 rows are 1.5."""
        return self._drawn / self._size

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "contents": self._contents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken. Raises ConfigError if the rows are not the same."""
        if state["contents"] != self._contents:
            raise ConfigError(
                f"{self._key}: the rows are not those of the checkpoint, so its position in the data is not valid. "
                "Restore the files and their order, or start over: resume_from_checkpoint: false"
            )
        self._drawn = int(state["drawn"])

    def _row_at(self, place: int) -> int:
        epoch, within = divmod(place, self._size)
        if not self._shuffle:
            return within
        if self._order[0] != epoch:
            random = np.random.default_rng([self._seed, epoch])
            together = self.rows.together
            firsts = together * random.permutation(len(self.rows) // together)
            self._order = epoch, (firsts[:, None] + np.arange(together)).ravel()
        return int(self._order[1][within])


def _digest(rows: Rows) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in columns(type(rows)):
        if (values := getattr(rows, name)) is not None:
            digest.update(values.tobytes())
    return digest.hexdigest()
